# A test whose long form finds more, seldom: `make test` runs the test, `make test-long` its long form (README.md).

# gpuwire_long_form(NAME COMMAND words... [ENVIRONMENT variables...]): NAME_long, which is told to be long by
# GPUWIRE_TEST_LONG as well. Not under the sanitizers.
function(gpuwire_long_form name)
  cmake_parse_arguments(ARG "" "" "COMMAND;ENVIRONMENT" ${ARGN})
  if(GPUWIRE_SANITIZE)
    return()
  endif()
  add_test(NAME ${name}_long COMMAND ${ARG_COMMAND})
  set_tests_properties(${name}_long PROPERTIES TIMEOUT 7200 LABELS long SKIP_RETURN_CODE 77 ENVIRONMENT
    "GPUWIRE_TEST_LONG=1;GPUWIRE_BUILD=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1;${ARG_ENVIRONMENT}")
endfunction()

# Which tests run under the sanitizers. The labels asan and tsan: in every `make test`; asan_whole and tsan_whole:
# besides with GPUWIRE_SANITIZERS=whole, which takes two more whole trees (test/run.sh). test/sanitizers.cmake lists
# what cannot run under one, with its reason.

# gpuwire_not_sanitized(SANITIZERS asan|tsan... TESTS names... BECAUSE reason)
function(gpuwire_not_sanitized)
  cmake_parse_arguments(ARG "" "BECAUSE" "SANITIZERS;TESTS" ${ARGN})
  if(NOT ARG_BECAUSE)
    message(FATAL_ERROR "no reason why ${ARG_TESTS} cannot run under a sanitizer")
  endif()
  foreach(sanitizer ${ARG_SANITIZERS})
    set_property(GLOBAL APPEND PROPERTY GPUWIRE_NOT_UNDER_${sanitizer} ${ARG_TESTS})
  endforeach()
endfunction()

# gpuwire_sanitizer_labels(VARIABLE TEST labels...): the labels with those that the test's sanitizers give it.
function(gpuwire_sanitizer_labels variable test)
  set(labels ${ARGN})
  foreach(sanitizer asan tsan)
    get_property(left_out GLOBAL PROPERTY GPUWIRE_NOT_UNDER_${sanitizer})
    if(test IN_LIST left_out AND sanitizer IN_LIST labels)
      message(FATAL_ERROR "${test} has the label ${sanitizer}, and test/sanitizers.cmake says that it cannot")
    endif()
    if(NOT test IN_LIST left_out AND NOT sanitizer IN_LIST labels)
      list(APPEND labels ${sanitizer}_whole)
    endif()
  endforeach()
  set(${variable} ${labels} PARENT_SCOPE)
endfunction()

# What the thread sanitizer is told in every test. When a thread first uses the thread-local memory of a library that
# was loaded late (UCX's are), GCC 12's runtime takes the two words before that memory for glibc 2.19's note of where it
# begins and how long it is. They are anything by now, and it ended the program when they named 500 TB.
set(GPUWIRE_TSAN_OPTIONS intercept_tls_get_addr=0)

# gpuwire_sanitizer_environment(VARIABLE variables...): a test's environment with what its sanitizer is told.
function(gpuwire_sanitizer_environment variable)
  set(environment ${ARGN})
  if(GPUWIRE_SANITIZE STREQUAL "thread")
    list(APPEND environment TSAN_OPTIONS=${GPUWIRE_TSAN_OPTIONS})
  endif()
  set(${variable} "${environment}" PARENT_SCOPE)
endfunction()

if(GPUWIRE_SANITIZE STREQUAL "address")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libasan.so OUTPUT_VARIABLE GPUWIRE_SANITIZER_RUNTIME
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()

# gpuwire_sanitized_scripts(TESTS...): tests of this folder whose command is a script that runs programs of the build.
function(gpuwire_sanitized_scripts)
  foreach(test ${ARGN})
    get_test_property(${test} LABELS labels)
    if(NOT labels)
      set(labels)
    endif()
    gpuwire_sanitizer_labels(labels ${test} ${labels})
    set_property(TEST ${test} PROPERTY LABELS "${labels}")
    if(GPUWIRE_SANITIZE STREQUAL "address")
      # The runtime is for processes whose program is not built with it: interpreters, and CUDA programs that load a
      # library which is. They, and programs that are killed, leave memory behind: servers that do are found by `soak`.
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT LD_PRELOAD=${GPUWIRE_SANITIZER_RUNTIME}
        ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_abort=0 GPUWIRE_TEST_SANITIZED=1)
    elseif(GPUWIRE_SANITIZE STREQUAL "thread")
      # The server's processes; what orders the threads of CUDA programs is not seen, so their client is another tree's.
      # What confines all threads of a worker at once does so in handlers of a signal, whose order is not seen either.
      set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT GPUWIRE_CLIENT_BUILD=${GPUWIRE_PROGRAMS_FROM}
        "GPUWIRE_TEST_SERVE_ARGUMENTS=--confinement off" TSAN_OPTIONS=halt_on_error=1:${GPUWIRE_TSAN_OPTIONS})
    endif()
  endforeach()
endfunction()

# CUDA programs are the same under every sanitizer: a sanitizer's tree has links to those of this one.
set(GPUWIRE_PROGRAMS_FROM ${CMAKE_SOURCE_DIR}/build CACHE PATH "The build tree whose CUDA programs the tests run")
# gpuwire_linked_program(PATH): PATH is below the binary folder.
function(gpuwire_linked_program path)
  file(RELATIVE_PATH relative ${CMAKE_BINARY_DIR} ${path})
  add_custom_command(OUTPUT ${path}
    COMMAND ${CMAKE_COMMAND} -E create_symlink ${GPUWIRE_PROGRAMS_FROM}/${relative} ${path} VERBATIM)
endfunction()

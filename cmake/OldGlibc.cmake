# What the packages contain runs with every glibc from GPUWIRE_OLDEST_GLIBC on, whatever the machine that builds it has
# (cmake/old_glibc).
set(GPUWIRE_OLDEST_GLIBC 2.31 CACHE STRING
  "The oldest glibc that the installed programs and libraries run with; empty: this machine's")
set(gpuwire_old_glibc_folder ${CMAKE_CURRENT_LIST_DIR}/old_glibc)

if(GPUWIRE_OLDEST_GLIBC AND NOT GPUWIRE_SANITIZE)
  set(gpuwire_old_glibc_libraries ${CMAKE_BINARY_DIR}/glibc_${GPUWIRE_OLDEST_GLIBC})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${gpuwire_old_glibc_folder}/make_stub_libraries.py)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${gpuwire_old_glibc_folder}/make_stub_libraries.py
            --version ${GPUWIRE_OLDEST_GLIBC} --compiler ${CMAKE_C_COMPILER} --output ${gpuwire_old_glibc_libraries}
    COMMAND_ERROR_IS_FATAL ANY)
  add_library(gpuwire_old_glibc_compat OBJECT ${gpuwire_old_glibc_folder}/compat.c)
  add_library(gpuwire_old_glibc_start OBJECT ${gpuwire_old_glibc_folder}/start.c)
endif()

# gpuwire_for_old_glibc(TARGET): a shared library that is installed; gpuwire_program() does so for programs.
function(gpuwire_for_old_glibc target)
  if(NOT TARGET gpuwire_old_glibc_compat)
    return()
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:gpuwire_old_glibc_compat>)
  # The empty ones are named although nothing is found in them: an old glibc has threads and dlopen() there.
  target_link_options(${target} PRIVATE -L${gpuwire_old_glibc_libraries} -Wl,--push-state,--no-as-needed -lpthread -ldl
    -Wl,--pop-state)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:gpuwire_old_glibc_start>)
    target_link_options(${target} PRIVATE -Wl,--wrap=__libc_start_main)
  endif()
endfunction()

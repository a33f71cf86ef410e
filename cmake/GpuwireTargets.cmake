# Settings and helpers shared by every folder's CMakeLists.txt.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Line tables only: backtraces stay readable and the build stays small on two cores.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1")
if(GPUWIRE_SANITIZE)
  # What the sanitizers find they find with little optimisation as well, in two thirds to three quarters of the time to
  # compile.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

# A checkout elsewhere finds in the compiler cache what this one compiled: no absolute path of the tree goes into a key
# or an object file. A path with a blank is written otherwise in a list of dependencies, where the cache does not make
# it relative: such a checkout has a cache of its own, or others would be told to depend on its files.
find_program(GPUWIRE_CCACHE ccache)
string(MAKE_C_IDENTIFIER "${CMAKE_SOURCE_DIR}" namespace_of_checkout)
if(NOT CMAKE_SOURCE_DIR MATCHES " ")
  set(namespace_of_checkout "")
endif()
if(GPUWIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(through_cache ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${through_cache} CCACHE_NAMESPACE=${namespace_of_checkout} ${GPUWIRE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  # A precompiled header knows the headers in it by their text, with comments (`#pragma once` compares it). The cache
  # otherwise takes headers that differ in comments alone for the same, and what it then gives is of no use: each header
  # in it is defined a second time. In this mode it compares whole files.
  set(GPUWIRE_PRECOMPILED_LAUNCHER ${through_cache} CCACHE_NAMESPACE=precompiled${namespace_of_checkout}
    CCACHE_DEPEND=1 ${GPUWIRE_CCACHE})
endif()
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${CMAKE_SOURCE_DIR}=.>)

include(PrecompiledHeaders)
include(UnityBuild)

# A build tree has the shape of an install tree (packaging/README.md), so that programs find each other the same way in
# both.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(GPUWIRE_TEST_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test_bin)
set(GPUWIRE_STUB_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/gpuwire)
set(GPUWIRE_COMMAND_OUTPUT_DIRECTORY ${GPUWIRE_STUB_OUTPUT_DIRECTORY}/commands)
set(GPUWIRE_SERVER_LIBRARY_DIRECTORY ${GPUWIRE_STUB_OUTPUT_DIRECTORY}/server)

find_package(Threads REQUIRED)
find_path(GPUWIRE_CUDA_INCLUDE cuda.h PATHS ${CUDAToolkit_ROOT}/include $ENV{CUDA_HOME}/include /usr/local/cuda/include
  REQUIRED)
get_filename_component(GPUWIRE_CUDA_ROOT ${GPUWIRE_CUDA_INCLUDE} DIRECTORY)

# What every target is compiled with.
add_library(gpuwire_options INTERFACE)
target_compile_options(gpuwire_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
target_include_directories(gpuwire_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
target_compile_definitions(gpuwire_options INTERFACE GPUWIRE_VERSION="${PROJECT_VERSION}" SPDLOG_COMPILED_LIB
  SPDLOG_FMT_EXTERNAL BOOST_ASIO_SEPARATE_COMPILATION)
target_link_libraries(gpuwire_options INTERFACE gpuwire_header_libraries Threads::Threads)
if(GPUWIRE_SANITIZE STREQUAL "address")
  # Zero bytes may be copied from nowhere: C2y says so (WG14 N3322), and every C library has always done it.
  # C programs may pass any number where a header of CUDA's says an enumeration, and get CUDA_ERROR_INVALID_VALUE; our
  # own enumerations have an underlying type, whose every number is theirs.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=nonnull-attribute,enum
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(GPUWIRE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
endif()

# fmt, spdlog, Asio, toml++ and nlohmann's JSON, compiled once (header_libraries/fmt.cpp). Below the sanitizers'
# options, which they need, too.
add_library(gpuwire_header_libraries STATIC ${CMAKE_CURRENT_LIST_DIR}/header_libraries/asio.cpp
  ${CMAKE_CURRENT_LIST_DIR}/header_libraries/fmt.cpp ${CMAKE_CURRENT_LIST_DIR}/header_libraries/json.cpp
  ${CMAKE_CURRENT_LIST_DIR}/header_libraries/spdlog.cpp
  ${CMAKE_CURRENT_LIST_DIR}/header_libraries/toml.cpp)
target_include_directories(gpuwire_header_libraries PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(gpuwire_header_libraries PRIVATE SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL
  BOOST_ASIO_SEPARATE_COMPILATION)

# cuda.h, and nothing else of the toolkit.
add_library(gpuwire_cuda_header INTERFACE)
target_include_directories(gpuwire_cuda_header SYSTEM INTERFACE ${GPUWIRE_CUDA_INCLUDE})

# Cap'n Proto and OpenSSL are linked statically: the stub lives inside other people's processes, and the
# server's binaries run on hosts whose distribution has other versions.
find_library(GPUWIRE_CAPNP_A libcapnp.a REQUIRED)
find_library(GPUWIRE_KJ_A libkj.a REQUIRED)
find_library(GPUWIRE_CRYPTO_A libcrypto.a REQUIRED)
find_library(GPUWIRE_SSL_A libssl.a REQUIRED)
find_program(GPUWIRE_CAPNP_TOOL capnp REQUIRED)
add_library(gpuwire_capnp INTERFACE)
target_link_libraries(gpuwire_capnp INTERFACE ${GPUWIRE_CAPNP_A} ${GPUWIRE_KJ_A} Threads::Threads)
add_library(gpuwire_crypto INTERFACE)
target_link_libraries(gpuwire_crypto INTERFACE ${GPUWIRE_CRYPTO_A} ${CMAKE_DL_LIBS})
# Imported, so that the linker gets it before libcrypto wherever both are wanted.
add_library(gpuwire_ssl STATIC IMPORTED GLOBAL)
set_target_properties(gpuwire_ssl PROPERTIES IMPORTED_LOCATION ${GPUWIRE_SSL_A})
target_link_libraries(gpuwire_ssl INTERFACE gpuwire_crypto)

find_library(GPUWIRE_SECCOMP_A libseccomp.a REQUIRED)
add_library(gpuwire_seccomp INTERFACE)
target_link_libraries(gpuwire_seccomp INTERFACE ${GPUWIRE_SECCOMP_A})

gpuwire_precompiled_kind(standard)
gpuwire_precompiled_kind(loop)
gpuwire_precompiled_kind(session LINK gpuwire_capnp gpuwire_cuda_header DEPENDS gpuwire_schema_headers)

# gpuwire_optimise_little(): compiles the calling folder, and the folders that it adds later, in about four fifths of
# the time. For code whose speed nobody notices: commands, configuration, messages between the server's processes, the
# software device's driver (its engine, which executes kernels, is optimised).
macro(gpuwire_optimise_little)
  add_compile_options(-O1)
endmacro()

# gpuwire_configure_again_with_new_headers(): for a folder that is left out because a package is missing. A build
# configures once more when a package has put headers there: make demo installs fewer packages than make test.
function(gpuwire_configure_again_with_new_headers)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS /usr/include)
endfunction()

# gpuwire_library(NAME SOURCES... LINK targets... [PRECOMPILED kind] [EACH_ALONE] [UNITS_OF folders...]): a static
# library with the common options. EACH_ALONE: its files are no units of a folder; UNITS_OF: folders that make units
# with all that is in them (UnityBuild.cmake).
function(gpuwire_library name)
  cmake_parse_arguments(ARG "EACH_ALONE" "PRECOMPILED" "SOURCES;LINK;UNITS_OF" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC gpuwire_options ${ARG_LINK})
  if(NOT ARG_PRECOMPILED)
    set(ARG_PRECOMPILED standard)
  endif()
  gpuwire_precompile(${name} ${ARG_PRECOMPILED})
  if(NOT ARG_EACH_ALONE)
    gpuwire_unity(${name} ${ARG_UNITS_OF})
  endif()
endfunction()

# gpuwire_capnp_sources(VARIABLE FOLDER FILES... [DEPENDS files...]): compiles schemas into build/generated/FOLDER and
# sets VARIABLE to the sources and headers that come of them. FILES: in the calling folder, or absolute; DEPENDS: what
# has to be made before they are read.
function(gpuwire_capnp_sources variable folder)
  cmake_parse_arguments(ARG "" "" "FILES;DEPENDS" ${ARGN})
  set(output ${CMAKE_BINARY_DIR}/generated/${folder})
  set(sources)
  foreach(file ${ARG_FILES})
    get_filename_component(file ${file} ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
    get_filename_component(name ${file} NAME)
    get_filename_component(directory ${file} DIRECTORY)
    set(compiled ${output}/${name}.c++ ${output}/${name}.h)
    add_custom_command(
      OUTPUT ${compiled}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${output}
      COMMAND ${GPUWIRE_CAPNP_TOOL} compile -I/usr/include --src-prefix=${directory} -o c++:${output} ${file}
      DEPENDS ${file} ${ARG_DEPENDS}
      COMMENT "Compiling ${name}")
    list(APPEND sources ${compiled})
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# gpuwire_program(NAME SOURCES... LINK targets... [PRECOMPILED kind] [STATIC]): a command behind `gpuwire` that needs
# nothing but the C library, and runs with old ones (OldGlibc.cmake). STATIC: not even that.
function(gpuwire_program name)
  cmake_parse_arguments(ARG "STATIC" "PRECOMPILED" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE gpuwire_options ${ARG_LINK})
  if(NOT ARG_PRECOMPILED)
    set(ARG_PRECOMPILED standard)
  endif()
  gpuwire_precompile(${name} ${ARG_PRECOMPILED})
  gpuwire_unity(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${GPUWIRE_COMMAND_OUTPUT_DIRECTORY})
  if(NOT GPUWIRE_SANITIZE)
    target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc -Wl,--gc-sections
      $<$<BOOL:${ARG_STATIC}>:-static>)
  endif()
  if(NOT ARG_STATIC)
    gpuwire_for_old_glibc(${name})
  endif()
endfunction()

# gpuwire_asan_tests and gpuwire_tsan_tests build what `make test` runs once more under a sanitizer.
add_custom_target(gpuwire_asan_tests)
add_custom_target(gpuwire_tsan_tests)

# gpuwire_long_tests(NAME SECONDS...): tests of this folder that take long. They begin first where there is no run
# before to tell: the last one would else run alone for as long.
function(gpuwire_long_tests)
  while(ARGN)
    list(POP_FRONT ARGN name seconds)
    if(TEST ${name})
      set_tests_properties(${name} PROPERTIES COST ${seconds})
    endif()
  endwhile()
endfunction()

# gpuwire_test(NAME SOURCES... LINK targets... [LABELS labels...] [TIMEOUT seconds]): a doctest program, run as one
# ctest test.
# The labels asan and tsan say that every `make test` also runs it under that sanitizer (SanitizedTests.cmake).
function(gpuwire_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT TARGET gpuwire_doctest_main)
    add_library(gpuwire_doctest_main STATIC ${CMAKE_SOURCE_DIR}/test/support/doctest_main.cpp)
    target_link_libraries(gpuwire_doctest_main PUBLIC gpuwire_options)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE gpuwire_doctest_main ${ARG_LINK})
  target_compile_options(${name} PRIVATE ${GPUWIRE_TEST_OPTIMISATION})
  gpuwire_precompiled_test_kind(kind ${ARG_LINK})
  gpuwire_precompile(${name} ${kind})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${GPUWIRE_TEST_OUTPUT_DIRECTORY})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1800)  # for a busy machine; a test that hangs is found all the same
  endif()
  foreach(sanitizer asan tsan)
    if(sanitizer IN_LIST ARG_LABELS)
      add_dependencies(gpuwire_${sanitizer}_tests ${name})
    endif()
  endforeach()
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  gpuwire_sanitizer_labels(ARG_LABELS ${name} ${ARG_LABELS})
  gpuwire_sanitizer_environment(ARG_ENVIRONMENT ${ARG_ENVIRONMENT})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT
    "${ARG_ENVIRONMENT}")
endfunction()

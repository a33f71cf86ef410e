# Headers that are compiled once for each kind of target (cmake/precompiled). Files that share one must be compiled with
# the same options as it: position-independent code of one form, and tests with their own optimisation.

option(GPUWIRE_PRECOMPILED_HEADERS "Compile the headers that most files share once" ON)
# clang would want its own, and its sanitizers other ones for each fuzz target.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(GPUWIRE_PRECOMPILED_HEADERS OFF)
endif()
if(GPUWIRE_PRECOMPILED_HEADERS)
  # Programs' files too, or theirs would differ from libraries'.
  set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
  # The compiler cache needs to see from the preprocessed text which header was used.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()

# What test sources are compiled with: what they test is optimised, they are not.
set(GPUWIRE_TEST_OPTIMISATION -O0)

# gpuwire_cache_precompiled(TARGET): the compiler cache compares the whole text of headers that TARGET precompiles.
function(gpuwire_cache_precompiled target)
  if(GPUWIRE_PRECOMPILED_LAUNCHER)
    set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "${GPUWIRE_PRECOMPILED_LAUNCHER}")
  endif()
endfunction()

# gpuwire_precompiled_kind(KIND [DEPENDS targets...] [LINK targets...]): makes the headers of
# cmake/precompiled/KIND.hpp,
# for libraries and programs and once more for tests.
function(gpuwire_precompiled_kind kind)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LINK" ${ARGN})
  if(NOT GPUWIRE_PRECOMPILED_HEADERS)
    return()
  endif()
  # By its name below the source folder: with its path, the compiler cache would find nothing of another checkout.
  set(header <cmake/precompiled/${kind}.hpp>)
  foreach(name ${kind} ${kind}_test)
    set(target gpuwire_precompiled_${name})
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp
      CONTENT "// So that there is something to compile with the headers of ${name}.\n")
    add_library(${target} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp)
    target_link_libraries(${target} PRIVATE gpuwire_options ${ARG_LINK})
    if(ARG_DEPENDS)
      add_dependencies(${target} ${ARG_DEPENDS})
    endif()
    set(headers ${header})
    if(name STREQUAL "${kind}_test")
      list(APPEND headers <doctest/doctest.h>)
      target_compile_options(${target} PRIVATE ${GPUWIRE_TEST_OPTIMISATION})
    endif()
    target_precompile_headers(${target} PRIVATE ${headers})
    gpuwire_cache_precompiled(${target})
  endforeach()
endfunction()

# gpuwire_precompiled_test_kind(VARIABLE TARGETS...): the kind of tests of these libraries.
function(gpuwire_precompiled_test_kind variable)
  set(kind standard)
  foreach(target ${ARGN})
    if(TARGET ${target})
      get_target_property(own ${target} GPUWIRE_PRECOMPILED_KIND)
      if(own AND NOT own MATCHES "^(standard|none)$")
        set(kind ${own})
        break()
      endif()
    endif()
  endforeach()
  set(${variable} ${kind}_test PARENT_SCOPE)
endfunction()

# gpuwire_precompile(TARGET KIND): KIND is one of cmake/precompiled, KIND_test for tests, or `none`.
function(gpuwire_precompile target kind)
  set_target_properties(${target} PROPERTIES GPUWIRE_PRECOMPILED_KIND ${kind})
  if(GPUWIRE_PRECOMPILED_HEADERS AND NOT kind STREQUAL "none")
    target_precompile_headers(${target} REUSE_FROM gpuwire_precompiled_${kind})
  endif()
endfunction()

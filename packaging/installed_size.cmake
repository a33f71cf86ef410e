# Run by CPack on the packages that it made: corrects their Installed-Size. CPack counts a symbolic link at the size of
# what it leads to (CMake 3.25, cpack_deb), so a client of 13 MB announces 30 MB to apt.
if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
foreach(package ${CPACK_PACKAGE_FILES})
  if(package MATCHES "\\.deb$")
    execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/installed_size.sh ${package} ${CPACK_DEBIAN_COMPRESSION_TYPE}
      RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR "the Installed-Size of ${package} could not be corrected")
    endif()
  endif()
endforeach()

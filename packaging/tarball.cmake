# What is different for the tarball: the client alone, in a folder of its own that may lie anywhere.
if(CPACK_GENERATOR STREQUAL "TGZ")
  set(CPACK_COMPONENTS_ALL client)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_SET_DESTDIR OFF)
  set(CPACK_PACKAGING_INSTALL_PREFIX "")
  set(CPACK_INCLUDE_TOPLEVEL_DIRECTORY ON)
  set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
  # The folder in it.
  set(CPACK_PACKAGE_FILE_NAME "gpuwire-client-${CPACK_PACKAGE_VERSION}-x86_64")
  set(CPACK_ARCHIVE_CLIENT_FILE_NAME "gpuwire-client-${CPACK_PACKAGE_VERSION}-x86_64")
endif()

# The files of one folder of a target are compiled as one unit: they read the same headers and instantiate the same
# templates, which takes three quarters of the time otherwise. Two files of a folder therefore give no two things in
# their anonymous namespaces the same name.

option(GPUWIRE_UNITY "Compile the files of a folder as one unit; OFF compiles each alone" ON)
# A folder of more files is compiled as several units, so that both processors have work to the end.
set(gpuwire_unity_files_max 8)
set(test_folder ${CMAKE_SOURCE_DIR}/test)

# gpuwire_unity(TARGET [FOLDER...]): for targets whose sources are the tree's own. Test files stay alone: each names its
# fixtures as it likes. FOLDER: one of the calling folder's whose files make units together with those of the folders in
# it, because each of these has a few files alone.
function(gpuwire_unity target)
  cmake_path(IS_PREFIX test_folder ${CMAKE_CURRENT_SOURCE_DIR} of_tests)
  if(NOT GPUWIRE_UNITY OR of_tests)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set(folders)
  foreach(source ${sources})
    cmake_path(IS_PREFIX CMAKE_BINARY_DIR "${source}" made)
    if(made OR NOT source MATCHES "\\.cpp$" OR source MATCHES "^\\$<")
      continue()
    endif()
    get_filename_component(folder ${source} ABSOLUTE)
    get_filename_component(folder ${folder} DIRECTORY)
    foreach(together ${ARGN})
      set(folder_together ${CMAKE_CURRENT_SOURCE_DIR}/${together})
      cmake_path(IS_PREFIX folder_together ${folder} inside)
      if(inside)
        set(folder ${folder_together})
      endif()
    endforeach()
    file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${folder})
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    list(APPEND files_of_${folder} ${source})
    list(APPEND folders ${folder})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    # Units of about the same number of files.
    list(LENGTH files_of_${folder} count)
    math(EXPR units "(${count} + ${gpuwire_unity_files_max} - 1) / ${gpuwire_unity_files_max}")
    math(EXPR in_each "(${count} + ${units} - 1) / ${units}")
    set(index 0)
    foreach(source ${files_of_${folder}})
      math(EXPR unit "${index} / ${in_each}")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${unit})
      math(EXPR index "${index} + 1")
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

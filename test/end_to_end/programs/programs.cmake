# Builds the CUDA programs of this folder into build/test_programs, and sets test_program_files to them (README.md).
set(programs ${CMAKE_CURRENT_LIST_DIR})
set(programs_built ${CMAKE_BINARY_DIR}/test_programs)
file(MAKE_DIRECTORY ${programs_built})
set(test_program_files)

# Options of programs that are executables of their own, and of folders.
set(clashing_symbols_options -Xlinker --export-dynamic)
set(per_thread_streams_options --default-stream per-thread)
set(separate_units_options -rdc=true)
set(separate_units_more ${programs}/separate_units/other.cu)
# Hardware features of one architecture.
set(sm_90_options -arch=sm_90)
set(tensor_maps_options -arch=sm_90)
# Without PTX.
set(only_sm_90_options -gencode arch=compute_90,code=sm_90)
if(EXISTS ${GPUWIRE_CUDA_ROOT}/lib64/libcudart.so)
  set(shared_runtime_options -cudart shared -Xlinker -rpath,${GPUWIRE_CUDA_ROOT}/lib64)
endif()
set(without_libcuda tensor_maps emptied_environment)

# test_programs_command(VARIABLE NAME OUTPUT): the command that builds this executable, and then has its sources.
function(test_programs_command variable name output)
  set(command ${GPUWIRE_NVCC} -O1 -std=c++17 -o ${output} -Xlinker -s ${${name}_options})
  if(NOT name IN_LIST without_libcuda)
    list(APPEND command -L${GPUWIRE_CUDA_ROOT}/lib64/stubs -lcuda)
  endif()
  set(${variable} ${command} PARENT_SCOPE)
endfunction()

# Executables of one program each.
file(GLOB sources CONFIGURE_DEPENDS ${programs}/*.cu)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  set(output ${programs_built}/${name})
  list(APPEND test_program_files ${output})
  if(GPUWIRE_SANITIZE)
    gpuwire_linked_program(${output})
    continue()
  endif()
  test_programs_command(command ${name} ${output})
  set(depfile DEPFILE ${output}.d)
  if(${name}_more)  # nvcc writes a depfile for one source only
    set(depfile)
  else()
    gpuwire_nvcc_depfile(depfile_options ${output})
    list(APPEND command ${depfile_options})
  endif()
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${command} ${source} ${${name}_more}
    DEPENDS ${source} ${${name}_more}
    ${depfile}
    COMMENT "nvcc ${output}"
    VERBATIM)
endforeach()

# Executables of a folder's programs. Each program is a hard link to its executable: a file of its own path for all who
# start, copy or name it.
file(GLOB folders LIST_DIRECTORIES true RELATIVE ${programs} CONFIGURE_DEPENDS ${programs}/*)
foreach(folder ${folders})
  file(GLOB sources CONFIGURE_DEPENDS ${programs}/${folder}/*.cu)
  if(NOT sources OR folder STREQUAL separate_units)
    continue()
  endif()
  set(output ${programs_built}/programs_${folder})
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/programs_${folder}.cu)
  set(names)
  set(links)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    list(APPEND names ${programs_built}/${name})
    list(APPEND links COMMAND ${CMAKE_COMMAND} -E create_hardlink ${output} ${programs_built}/${name})
  endforeach()
  list(APPEND test_program_files ${names})
  if(GPUWIRE_SANITIZE)
    foreach(name ${names})
      gpuwire_linked_program(${name})
    endforeach()
    continue()
  endif()
  test_programs_command(command ${folder} ${output})
  gpuwire_nvcc_depfile(depfile_options ${output})
  add_custom_command(
    OUTPUT ${output} ${names}
    COMMAND ${Python3_EXECUTABLE} ${programs}/join_programs.py ${unit} ${sources}
    # Only the main() of a program returns 0 by itself.
    COMMAND ${command} -Xcompiler -Werror=return-type ${depfile_options} ${unit}
    ${links}
    DEPENDS ${sources} ${programs}/join_programs.py
    DEPFILE ${output}.d
    COMMENT "nvcc ${output}"
    VERBATIM)
endforeach()

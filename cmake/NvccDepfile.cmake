# gpuwire_nvcc_depfile(VARIABLE OUTPUT): sets VARIABLE to the options by which nvcc writes the headers of one source
# into OUTPUT.d, for DEPFILE of add_custom_command(). By itself nvcc does not escape spaces in the name of its output:
# then the build takes the words of the name for missing files, and compiles the source every time.
function(gpuwire_nvcc_depfile variable output)
  string(REPLACE " " "\\ " escaped ${output})
  set(${variable} -MD -MF ${output}.d -MT ${escaped} PARENT_SCOPE)
endfunction()

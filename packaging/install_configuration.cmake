# Installs the configuration files of one component. `source`: the folder of this file; `component`: client, server or
# slurm.
set(etc "${CMAKE_INSTALL_PREFIX}/etc")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(etc /etc)
endif()
set(suffix toml)
if(component STREQUAL "slurm")
  set(suffix conf)
endif()
file(INSTALL "${source}/configuration/${component}.${suffix}" DESTINATION "${etc}/gpuwire" TYPE FILE)
if(component STREQUAL "server")
  file(INSTALL "${source}/configuration/logrotate" DESTINATION "${etc}/logrotate.d" TYPE FILE RENAME gpuwire-server)
endif()

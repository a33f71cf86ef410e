# Installs the configuration files of one component. `source`: the folder of this file; `component`: client or server.
set(etc "${CMAKE_INSTALL_PREFIX}/etc")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(etc /etc)
endif()
file(INSTALL "${source}/configuration/${component}.toml" DESTINATION "${etc}/gpuwire" TYPE FILE)
if(component STREQUAL "server")
  file(INSTALL "${source}/configuration/logrotate" DESTINATION "${etc}/logrotate.d" TYPE FILE RENAME gpuwire-server)
endif()

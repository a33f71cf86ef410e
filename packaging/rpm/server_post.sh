# $1: 1 at an installation, 2 at an upgrade.
systemd-sysusers gpuwire.conf >/dev/null 2>&1 || :
# The folder that `gpuwire admin init` fills; only the server reads it.
[ -d /etc/gpuwire/identity ] || install -d -m 0700 -o gpuwire -g gpuwire /etc/gpuwire/identity || :
# The service makes this folder, too. It is made here so that `gpuwire serve --check-config` finds it before the first
# start.
[ -d /var/log/gpuwire ] || install -d -m 0750 -o gpuwire -g gpuwire /var/log/gpuwire || :
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    # The broker's process ends at once, and the new process takes over its sessions, which continue.
    [ "$1" -lt 2 ] || systemctl try-restart gpuwire-server.service || :
fi

# $1: 1 when it is installed, 2 when it replaces an older one.
systemd-sysusers gpuwire.conf >/dev/null 2>&1 || :
# What `gpuwire admin init` fills; the server reads it, nobody else does.
[ -d /etc/gpuwire/identity ] || install -d -m 0700 -o gpuwire -g gpuwire /etc/gpuwire/identity || :
# The service makes it, too; here, so that `gpuwire serve --check-config` finds it before the first start.
[ -d /var/log/gpuwire ] || install -d -m 0750 -o gpuwire -g gpuwire /var/log/gpuwire || :
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    # The broker's process ends at once and leaves its sessions to the new one, which takes them over: they go on.
    [ "$1" -lt 2 ] || systemctl try-restart gpuwire-server.service || :
fi

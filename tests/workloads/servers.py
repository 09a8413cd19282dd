"""Servers and their clients, on loopback and on Unix sockets."""

from tests.workloads.workload import NODE, PYTHON, Workload, of_profile

_WSGI = """
cat >app.py <<'end'
import time
told, hits = [], 0
def app(environ, start):
    global hits
    word = environ["PATH_INFO"].strip("/")
    if word == "load":
        hits += 1
        with open("hits", "a") as file:
            file.write("x")
        time.sleep(0.002)
    elif word:
        told.append(word)
    start("200 OK", [("Content-Type", "text/plain")])
    return [" ".join(told).encode()]
end
>hits
"""
_LOAD = """
for i in 1 2 3 4 5 6; do while :; do curl -s http://127.0.0.1:7001/load; done >/dev/null 2>&1 & done
"""
_QUEUE = ("tcp 7001: [0-9]+ connections that no program has accepted yet are not in copies",)
_ANSWERS = "curl -sf http://127.0.0.1:7001/"

ROWS = (
    Workload(
        name="python http.server",
        start="python3 -m http.server 7001 >log 2>&1 &",
        ready=f"{_ANSWERS}",
        tell="curl -s http://127.0.0.1:7001/$1",
        told=r"grep -o 'GET /[a-z0-9-]\+' log | cut -c6-",
        slow=True,
    ),
    Workload(
        name="python WSGI server under load",
        start=f"""{_WSGI}
        echo 'import app, wsgiref.simple_server as s; s.make_server("", 7001, app.app).serve_forever()' >serve.py
        python3 serve.py >/dev/null 2>&1 &{_LOAD}""",
        ready="[ $(wc -c <hits) -gt 50 ]",
        tell=f"{_ANSWERS}$1",
        told=_ANSWERS,
        work="wc -c <hits",
        degraded=_QUEUE,
        slow=True,
    ),
    Workload(
        name="gunicorn under load",
        start=f"{_WSGI}\n{PYTHON}/gunicorn -b 127.0.0.1:7001 app:app >log 2>&1 &{_LOAD}",
        ready="[ $(wc -c <hits) -gt 50 ]",
        tell=f"{_ANSWERS}$1",
        told=_ANSWERS,
        work="wc -c <hits",
        degraded=_QUEUE,
        pypi=("gunicorn",),
        debian=("curl",),
    ),
    of_profile("redis under load", "redis", work="redis-cli -p 7002 get n"),
    Workload(
        name="memcached",
        start="memcached -u root -p 7003 &",
        ready="printf 'add w 0 0 0\\r\\n\\r\\nquit\\r\\n' | nc -q1 127.0.0.1 7003",
        tell="printf 'append w 0 0 %s\\r\\n %s\\r\\nquit\\r\\n' $((${#1} + 1)) $1 | nc -q1 127.0.0.1 7003",
        told="printf 'get w\\r\\nquit\\r\\n' | nc -q1 127.0.0.1 7003 | sed -n 2p | tr -d '\\r'",
        debian=("memcached", "netcat-openbsd"),
    ),
    of_profile("postgres with an open transaction", "postgres"),
    of_profile("mariadb", "mariadb"),
    Workload(
        name="nginx",
        start="""
        echo 'events {} http { access_log /opt/workload/log; server { listen 7004; location / { return 204; } } }' >conf
        /usr/sbin/nginx -c $PWD/conf
        """,
        tell="curl -s http://127.0.0.1:7004/$1",
        told=r"grep -o 'GET /[a-z0-9-]\+' log | cut -c6-",
        debian=("nginx-light", "curl"),
    ),
    Workload(
        name="sshd, and ssh with ControlMaster",
        start="""
        mkdir -p /run/sshd ~/.ssh; chmod 700 ~/.ssh
        ssh-keygen -qt ed25519 -N '' -f host; ssh-keygen -qt ed25519 -N '' -f key; cat key.pub >>~/.ssh/authorized_keys
        /usr/sbin/sshd -p 7005 -h $PWD/host -o PidFile=none -o StrictModes=no
        printf 'StrictHostKeyChecking no\\nUserKnownHostsFile /dev/null\\nPort 7005\\n' >conf
        ssh -F conf -fNM -S $PWD/ctl -i key 127.0.0.1 2>/dev/null
        """,
        tell='ssh -S $PWD/ctl 127.0.0.1 "echo $1 >>$PWD/told"',
        debian=("openssh-server", "openssh-client"),
    ),
    Workload(
        name="ssh at the terminal",
        start="""
        mkdir -p /run/sshd ~/.ssh; chmod 700 ~/.ssh
        ssh-keygen -qt ed25519 -N '' -f host; ssh-keygen -qt ed25519 -N '' -f key; cat key.pub >>~/.ssh/authorized_keys
        /usr/sbin/sshd -p 7005 -h $PWD/host -o PidFile=none -o StrictModes=no
        """,
        typed="ssh -p 7005 -i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null 127.0.0.1 -t bash --norc",
        shows="bash-5",
        keys='words="$words WORD"; echo $words >/opt/workload/told\r',
        debian=("openssh-server", "openssh-client"),
    ),
    Workload(
        name="supervisord",
        start="""
        cat >conf <<end
[supervisord]
[unix_http_server]
file=/opt/workload/s
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix:///opt/workload/s
end
        for name in one original first second again; do
            printf '[program:%s]\\ncommand=sleep 1000\\nautostart=false\\nstartsecs=0\\n' $name
        done >>conf
        supervisord -c conf
        """,
        ready="supervisorctl -c conf pid",
        tell="supervisorctl -c conf start $1",
        told="supervisorctl -c conf status | awk '$2 == \"RUNNING\" { print $1 }'",
        debian=("supervisor",),
    ),
    Workload(
        name="atd",
        start="/usr/sbin/atd",
        ready="pgrep -x atd",
        tell='echo "echo $1 >>$PWD/told" | at now',
        debian=("at",),
    ),
    Workload(
        name="cron",
        start="/usr/sbin/cron; (while sleep 0.1; do pgrep -x cron; done) >ticks &",
        work="wc -l <ticks",
        debian=("cron",),
    ),
    Workload(
        name="websocket",
        start=f"""
        cat >app.py <<'end'
import asyncio, os, websockets
words = []
async def serve(peer):
    async for word in peer:
        words.append(word)
        with open("told", "w") as file:
            file.write(" ".join(words))
async def main():
    async with websockets.serve(serve, "127.0.0.1", 7006), websockets.connect("ws://127.0.0.1:7006") as peer:
        os.mkfifo("tell")
        while True:
            text = await asyncio.to_thread(lambda: open("tell").read())
            await peer.send(text.strip())
asyncio.run(main())
end
        {PYTHON}/python app.py >log 2>&1 &
        """,
        ready="[ -p tell ]",
        tell="echo $1 >tell",
        pypi=("websockets",),
    ),
    Workload(
        name="websocket of node (ws)",
        start=f"""
        mkfifo tell; exec 7<>tell
        cat >app.cjs <<'end'
const ws = require("{NODE.removesuffix("/.bin")}/ws"), fs = require("fs"), words = []
new ws.Server({{ port: 7006 }}).on("connection", (peer) => peer.on("message", (word) => {{
  words.push(word.toString().trim()); fs.writeFileSync("told", words.join(" "))
}}))
const client = new ws("ws://127.0.0.1:7006")
client.on("open", () => {{ process.stdin.on("data", (word) => client.send(word)); fs.writeFileSync("up", "") }})
end
        node app.cjs <tell >log 2>&1 &
        """,
        ready="[ -e up ]",
        tell="echo $1 >tell",
        npm=("ws",),
        debian=("nodejs",),
    ),
    Workload(
        name="TLS connection (openssl)",
        start="""
        openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -subj /CN=w -days 1 2>/dev/null
        mkfifo tell; exec 7<>tell
        tail -f /dev/null | openssl s_server -quiet -accept 7007 -key key -cert cert >told 2>log &
        until ss -Htln sport = 7007 | grep -q .; do sleep 0.05; done
        openssl s_client -quiet -connect 127.0.0.1:7007 <tell >/dev/null 2>&1 &
        """,
        ready="[ $(ss -Htn sport = 7007 | wc -l) = 1 ]",
        tell="echo $1 >tell",
        debian=("openssl", "iproute2"),
    ),
    Workload(
        name="socat relay",
        start="""
        mkfifo tell; exec 7<>tell
        socat -u TCP-LISTEN:7008,fork,reuseaddr OPEN:told,creat,append &
        socat -u UNIX-LISTEN:s,fork TCP:127.0.0.1:7008 &
        until [ -S s ]; do sleep 0.05; done; socat -u FD:7 UNIX-CONNECT:s &
        """,
        tell="echo $1 >tell",
        debian=("socat",),
    ),
    Workload(
        name="dnsmasq",
        start="""
        cat >ask.py <<'end'
import socket, sys
asking, word = socket.socket(type=socket.SOCK_DGRAM), sys.argv[1].encode()
head, tail = bytes([7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, len(word)]), bytes([0, 0, 1, 0, 1])
asking.sendto(head + word + tail, ("127.0.0.1", 7009))
asking.recv(512)
end
        dnsmasq --no-resolv --port=7009 --log-queries --log-facility=$PWD/log --user=root
        """,
        ready="ss -Hlun sport = 7009 | grep -q .",
        tell="python3 ask.py $1",
        told=r"grep -o 'query\[A\] [a-z0-9-]*' log | cut -d' ' -f2",
        debian=("dnsmasq-base", "iproute2"),
    ),
    Workload(
        name="D-Bus",
        start="eval $(dbus-launch --sh-syntax); echo $DBUS_SESSION_BUS_ADDRESS >address; dbus-monitor >log 2>&1 &",
        ready="grep -q NameAcquired log",
        tell="DBUS_SESSION_BUS_ADDRESS=$(cat address) dbus-send / a.b.Word string:$1",
        told="sed -n 's/^   string \"\\([a-z0-9-]*\\)\"$/\\1/p' log",
        debian=("dbus-x11", "dbus"),
    ),
    of_profile("jupyter kernel", "jupyter"),
    of_profile("chromium", "chromium"),
)

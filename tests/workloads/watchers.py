"""Programs that watch files: development servers, compilers, inotify."""

from tests.workloads.workload import NODE, PYTHON, Workload

_APPEND = "echo \"export const $1 = '$1'\" >>"
_FIND = 'grep -o "\'[a-z0-9]*\'\\|\\"[a-z0-9]*\\"" FILE | tr -d "\'\\"" | grep -v use'
_APP = """
mkdir pages
cat >pages/words.py <<'end'
words = []
end
cat >app.py <<'end'
from pages.words import words
"""

ROWS = (
    Workload(name="tail -f", start=">log; tail -f log >told &", tell="echo $1 >>log", ready="pgrep -x tail"),
    Workload(
        name="tail --retry of several",
        start=">a; >b; tail -qn0 -F a b >told &",
        tell="echo $1 >>b",
        ready="pgrep -x tail",
        slow=True,
    ),
    Workload(
        name="inotifywait",
        start="mkdir in; inotifywait -qme create --format %f in >told &",
        ready="pgrep -x inotifywait",
        tell=">in/$1",
        debian=("inotify-tools",),
    ),
    Workload(
        name="entr",
        start="mkdir in; >in/file; (ls in/file | entr -n sh -c 'cat in/file >told') >log 2>&1 &",
        ready="[ -e told ]",
        tell="echo $1 >>in/file",
        debian=("entr",),
    ),
    Workload(
        name="node fs.watch",
        start="""
        >file; node -e 'fs.watch("file", () => fs.writeFileSync("told", fs.readFileSync("file")))' &
        """,
        ready="grep -q inotify /proc/$(pgrep -x node)/fdinfo/*",
        tell="echo $1 >>file",
        needs=("node",),
    ),
    Workload(
        name="chokidar",
        start=f"mkdir in; >in/file; {NODE}/chokidar in -c 'cat in/file >told' >log 2>&1 &",
        ready="grep -q Watching log",
        tell="echo $1 >>in/file",
        npm=("chokidar-cli",),
        debian=("nodejs",),
    ),
    Workload(
        name="nodemon",
        start=f"""
        echo 'require("fs").writeFileSync("told", [].join(" ")); setInterval(() => 0, 1000)' >app.js
        {NODE}/nodemon app.js >log 2>&1 &
        """,
        ready="echo >b.js; sleep 1; grep -q restarting log",
        tell="sed -i \"s/\\[/['$1', /\" app.js",
        npm=("nodemon",),
        debian=("nodejs",),
    ),
    Workload(
        name="tsc --watch",
        start=f"mkdir out; >a.ts; {NODE}/tsc --watch --preserveWatchOutput --outDir out a.ts >log 2>&1 &",
        ready="grep -q 'Watching for' log",
        tell=_APPEND + "a.ts",
        told=_FIND.replace("FILE", "out/a.js").replace("-v use", "-v 'use\\|esModule'"),
        npm=("typescript@5",),
        debian=("nodejs",),
    ),
    Workload(
        name="webpack --watch",
        start=f"""
        mkdir src; echo 'console.log("begun")' >src/index.js; ln -s {NODE.removesuffix("/.bin")} .
        {NODE}/webpack --watch --mode production >log 2>&1 &
        """,
        ready="grep -q compiled log",
        tell="echo \"console.log('$1')\" >>src/index.js",
        told="grep -o '\"[a-z0-9-]*\"' dist/main.js | tr -d '\"'",
        knows="begun",
        npm=("webpack", "webpack-cli"),
        debian=("nodejs",),
    ),
    Workload(
        name="vite",
        start=f"""
        echo '{{"type": "module"}}' >package.json; echo '<script type=module src=/a.ts></script>' >index.html; >a.ts
        {NODE}/vite --port 7011 --host 127.0.0.1 >log 2>&1 &
        """,
        ready="curl -sf http://127.0.0.1:7011/a.ts",
        tell="echo \"console.log('$1')\" >>a.ts",
        told="curl -s http://127.0.0.1:7011/a.ts | sed -n 's/^console.log(.\\([a-z0-9-]*\\).).*/\\1/p'",
        npm=("vite",),
        debian=("nodejs", "curl"),
    ),
    Workload(
        name="next dev",
        start=f"""
        cd {NODE.removesuffix("/node_modules/.bin")}; mkdir pages
        echo 'export default () => <p>begun</p>' >pages/index.js
        NEXT_TELEMETRY_DISABLED=1 {NODE}/next dev -p 7012 >log 2>&1 &
        """,
        ready="curl -sf http://127.0.0.1:7012/",
        tell=f'sed -i "s|</p>| $1</p>|" {NODE.removesuffix("/node_modules/.bin")}/pages/index.js',
        told="curl -s http://127.0.0.1:7012/ | grep -o '<p>[^<]*' | cut -c4-",
        knows="begun",
        npm=("next", "react", "react-dom"),
        debian=("nodejs", "curl"),
    ),
    Workload(
        name="uvicorn --reload",
        start=f"""{_APP}
async def app(scope, receive, send):
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": " ".join(words).encode()}})
end
        {PYTHON}/uvicorn --reload --lifespan off --port 7013 app:app >log 2>&1 &
        """,
        ready="curl -sf http://127.0.0.1:7013/",
        tell="sed -i \"s/\\[/['$1', /\" pages/words.py",
        told="curl -sf http://127.0.0.1:7013/",
        pypi=("uvicorn", "watchfiles"),
        debian=("curl",),
    ),
    Workload(
        name="flask --debug",
        start=f"""{_APP}
import flask
app = flask.Flask("app")
app.get("/")(lambda: " ".join(words))
end
        {PYTHON}/flask run --debug --port 7014 >log 2>&1 &
        """,
        ready="curl -sf http://127.0.0.1:7014/",
        tell="sed -i \"s/\\[/['$1', /\" pages/words.py",
        told="curl -sf http://127.0.0.1:7014/",
        pypi=("flask",),
        debian=("curl",),
    ),
)

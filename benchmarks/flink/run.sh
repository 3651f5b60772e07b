#!/usr/bin/env bash
# run.sh <bounded|mixed|restart|backpressure|trivial> [key=value ...]: JSON on stdout, log on stderr.
# run.sh java <argument ...>: any main class, on the same class path.
# run.sh cluster <folder> [key=value ...]: bench.Nexmark in an application cluster with the folder's settings.
# run.sh build: only that. Needs Maven and Java 17.
# FLINK_BASELINE_OUT: where to build and work (default out/flink); XMX: the heap of a case (default 3g).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${FLINK_BASELINE_OUT:-$here/../../out/flink}

# Built again when a source is newer than the last build; outside this folder, so that no build product lies in it.
if [ ! -e "$out/.built" ] || [ -n "$(find "$here/pom.xml" "$here/src" -newer "$out/.built" -print -quit)" ]; then
  mkdir -p "$out"
  rm -rf "$out/src" "$out/target"
  cp -r "$here/pom.xml" "$here/src" "$out"
  (cd "$out" && mvn -q -B package dependency:copy-dependencies -DoutputDirectory=target/lib >&2)
  touch "$out/.built"
fi

java=(java "-Djava.io.tmpdir=${TMPDIR:-/tmp}")
for package in java.lang java.util java.nio java.util.concurrent java.time sun.nio.ch; do
  java+=("--add-opens=java.base/$package=ALL-UNNAMED")
done
java+=(-cp "$out/target/flinkbench-1.jar:$out/target/lib/*")
case $1 in
  build) ;;
  java) exec "${java[@]}" "${@:2}" ;;
  cluster)
    # What is killed is started again at once.
    "${java[@]}" -Xmx128m org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer \
      --zkConfigFile "$2/zoo.cfg" --peerId 1 &
    while kill -0 $$; do
      "${java[@]}" -Xmx2g org.apache.flink.runtime.taskexecutor.TaskManagerRunner --configDir "$2" || true
    done &
    until
      "${java[@]}" -Xmx1g -Dbench.checkpoints=INFO org.apache.flink.container.entrypoint.StandaloneApplicationClusterEntryPoint \
        --configDir "$2" --job-classname bench.Nexmark "${@:3}"
    do
      [ $? = 137 ] || exit 1
    done
    ;;
  *) exec "${java[@]}" -Xmx"${XMX:-3g}" bench.Main "$1" "work=$out/work/$$" "${@:2}" ;;
esac

package bench;

import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.runtime.executiongraph.AccessExecutionGraph;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.streaming.api.datastream.DataStream;

/** A bounded job: throughput, and how long it takes from the last row to FINISHED. */
final class BoundedCase {
    private BoundedCase() {}

    static Map<String, Object> run(Arguments arguments, Path work) throws Exception {
        long count = arguments.number("n", 5_000_000);
        var conf = Cluster.configuration(arguments, work);
        try (MiniCluster cluster = Cluster.start(arguments, conf)) {
            var environment = Cluster.environment(arguments, conf);
            DataStream<Tuple4<Long, Integer, Long, Double>> rows =
                    Rows.bounded(environment, count, arguments.number("rate", 0));
            if (arguments.flag("keyed", false)) {
                rows = rows.keyBy(row -> row.f1).process(new CountFunction()).returns(Rows.TYPE);
            }
            CsvSink.attach(rows, arguments, work.resolve("out"));
            JobGraph job = environment.getStreamGraph().getJobGraph();
            long submitted = Probe.now();
            cluster.submitJob(job).get();
            cluster.requestJobResult(job.getJobID()).get().toJobExecutionResult(BoundedCase.class.getClassLoader());
            long done = Probe.now();
            AccessExecutionGraph graph = cluster.getExecutionGraph(job.getJobID()).get();
            long first = Probe.earliest("src.first");
            long last = Probe.latest("src.last");
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("submitToDoneMs", done - submitted);
            result.put("submitToFirstRecMs", first - submitted);
            result.put("emitRowsPerSec", Math.round(count * 1000.0 / (last - first)));
            result.put("rowsPerSecWall", Math.round(count * 1000.0 / (done - submitted)));
            result.put("lastRecToFinishedMs", graph.getStatusTimestamp(JobStatus.FINISHED) - last);
            result.put("lastRecToEndInputMs", Probe.latest("src.endInput") - last);
            result.put("checkpoints", Checkpoints.describe(graph));
            if (CsvSink.writes(arguments)) {
                result.put("readback", Output.count(work.resolve("out"), count));
            }
            return result;
        }
    }
}

package bench;

import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobID;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.executiongraph.AccessExecutionGraph;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;

/** A bounded and an endless source, united, counted by key, written to files: a job that continues after one has ended. */
final class MixedJob {
    private final MiniCluster cluster;
    private final Arguments arguments;
    private final Path work;
    private final JobID id;
    final long submitted;

    MixedJob(MiniCluster cluster, org.apache.flink.configuration.Configuration conf, Arguments arguments, Path work, long boundedRate)
            throws Exception {
        this.cluster = cluster;
        this.arguments = arguments;
        this.work = work;
        var environment = Cluster.environment(arguments, conf);
        var rows =
                Rows.bounded(environment, rows(arguments), boundedRate)
                        .union(Rows.endless(environment, arguments.number("rate", 5000)))
                        .keyBy(row -> row.f1)
                        .process(new CountFunction())
                        .returns(Rows.TYPE);
        CsvSink.attach(rows, arguments, work.resolve("out"));
        JobGraph job = environment.getStreamGraph().getJobGraph();
        id = job.getJobID();
        submitted = Probe.now();
        cluster.submitJob(job).get();
    }

    static long rows(Arguments arguments) {
        return arguments.number("n", 200_000);
    }

    AccessExecutionGraph graph() throws Exception {
        return cluster.getExecutionGraph(id).get();
    }

    /** Stops the job, by a savepoint if that can be, and tells what is the same for all cases. */
    Map<String, Object> stop() throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        long asked = Probe.now();
        try {
            if (arguments.flag("stopsp", true)) {
                cluster.stopWithSavepoint(id, work + "/savepoints", false, SavepointFormatType.CANONICAL)
                        .get(60, TimeUnit.SECONDS);
            } else {
                cluster.cancelJob(id).get();
            }
        } catch (Exception problem) {
            result.put("savepointErr", problem.toString());
            cluster.cancelJob(id).get();
        }
        cluster.requestJobResult(id).get(60, TimeUnit.SECONDS);
        result.put("stopWithSavepointMs", Probe.now() - asked);
        result.put("finalState", graph().getState().name());
        result.put("submitToFirstProcessedMs", Probe.FIRST_PROCESSED_MS.get() - submitted);
        result.put("generatedBounded", Probe.GENERATED_BOUNDED.get());
        result.put("generatedRate", Probe.GENERATED_RATE.get());
        result.put("checkpoints", Checkpoints.describe(graph()));
        if (CsvSink.writes(arguments)) {
            result.put("readback", Output.count(work.resolve("out"), rows(arguments)));
        }
        return result;
    }
}

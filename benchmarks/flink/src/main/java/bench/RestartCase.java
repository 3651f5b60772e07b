package bench;

import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.BooleanSupplier;
import org.apache.flink.runtime.executiongraph.AccessExecutionGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;

/** A task fails: how long until rows are processed again, and what of the bounded source is read again. */
final class RestartCase {
    private RestartCase() {}

    static Map<String, Object> run(Arguments arguments, Path work) throws Exception {
        var conf = Cluster.configuration(arguments, work);
        try (MiniCluster cluster = Cluster.start(arguments, conf)) {
            MixedJob job = new MixedJob(cluster, conf, arguments, work, arguments.number("brate", 0));
            long limit = Probe.now() + arguments.number("runSec", 60) * 1000;
            await(limit, "the moment to fail", () -> due(graph(job), arguments));
            long generated = Probe.GENERATED_BOUNDED.get();
            long completed = Checkpoints.completedSince(graph(job), 0).count();
            long failed = Probe.now();
            Probe.failNow = true;
            int subtasks = (int) Cluster.parallelism(arguments);
            await(limit, "rows again", () -> Probe.FAILED_NS.get() > 0 && Probe.FIRST_AFTER_NS.size() == subtasks);
            long recovered = Probe.now();
            await(limit, "three checkpoints", () -> Checkpoints.completedSince(graph(job), recovered).count() >= 3);
            long nextDone =
                    Checkpoints.completedSince(graph(job), recovered)
                            .mapToLong(one -> one.getTriggerTimestamp() + one.getEndToEndDuration())
                            .min()
                            .orElseThrow();
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("checkpointsBeforeFail", completed);
            result.put("failToFirstOpenMs", sinceFailure(Probe.OPENED_AFTER_NS, false));
            result.put("failToFirstRecordMs", sinceFailure(Probe.FIRST_AFTER_NS, false));
            result.put("failToAllSubtasksRecordMs", sinceFailure(Probe.FIRST_AFTER_NS, true));
            result.put("failToNextCompletedCkptMs", nextDone - failed);
            result.put("generatedBoundedAtFail", generated);
            result.put("stateBoundedSumAtEnd", Probe.countOf("b"));
            result.putAll(job.stop());
            return result;
        }
    }

    /** `finished`: two checkpoints after the bounded source's end; `justFinished`: at it; `midway`: half way. */
    private static boolean due(AccessExecutionGraph graph, Arguments arguments) {
        long finished = Checkpoints.boundedFinishedAt(graph);
        return switch (arguments.text("failWhen", "finished")) {
            case "finished" -> finished > 0 && Checkpoints.completedSince(graph, finished).count() >= 2;
            case "justFinished" -> finished > 0;
            case "midway" -> Probe.GENERATED_BOUNDED.get() >= MixedJob.rows(arguments) / 2
                    && Checkpoints.completedSince(graph, 0).findAny().isPresent();
            default -> throw new IllegalArgumentException("failWhen: finished, justFinished or midway");
        };
    }

    private static double sinceFailure(Map<Integer, Long> moments, boolean last) {
        var nanos = moments.values().stream().mapToLong(it -> it);
        return ((last ? nanos.max() : nanos.min()).orElseThrow() - Probe.FAILED_NS.get()) / 1e6;
    }

    private static AccessExecutionGraph graph(MixedJob job) {
        try {
            return job.graph();
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }

    private static void await(long limit, String what, BooleanSupplier condition) throws InterruptedException {
        while (!condition.getAsBoolean()) {
            if (Probe.now() > limit) {
                throw new IllegalStateException("not in time: " + what);
            }
            Thread.sleep(5);
        }
    }
}

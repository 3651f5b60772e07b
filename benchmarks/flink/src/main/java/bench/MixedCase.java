package bench;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.runtime.checkpoint.AbstractCheckpointStats;
import org.apache.flink.runtime.minicluster.MiniCluster;

/** Checkpoints before and after a bounded source has finished beside an endless one. */
final class MixedCase {
    private MixedCase() {}

    static Map<String, Object> run(Arguments arguments, Path work) throws Exception {
        var conf = Cluster.configuration(arguments, work);
        try (MiniCluster cluster = Cluster.start(arguments, conf)) {
            MixedJob job = new MixedJob(cluster, conf, arguments, work, arguments.number("brate", 20_000));
            // The figures are those of a fixed time of running, not of a condition.
            Thread.sleep(arguments.number("runSec", 30) * 1000);
            Map<String, Object> result = new LinkedHashMap<>(job.stop());
            long finished = Checkpoints.boundedFinishedAt(job.graph());
            List<Long> before = new ArrayList<>();
            List<Long> after = new ArrayList<>();
            for (AbstractCheckpointStats one : Checkpoints.completedSince(job.graph(), 0).toList()) {
                if (!one.getProperties().isSavepoint()) {
                    (finished == 0 || one.getTriggerTimestamp() < finished ? before : after).add(one.getEndToEndDuration());
                }
            }
            result.put("boundedFinishedAtMs", finished - job.submitted);
            result.put("checkpointsBefore", before.size());
            result.put("checkpointsAfter", after.size());
            result.put("medianBeforeMs", Checkpoints.median(before));
            result.put("medianAfterMs", Checkpoints.median(after));
            return result;
        }
    }
}

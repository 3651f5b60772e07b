package bench;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.flink.runtime.checkpoint.AbstractCheckpointStats;
import org.apache.flink.runtime.checkpoint.CheckpointStatsStatus;
import org.apache.flink.runtime.checkpoint.SubtaskStateStats;
import org.apache.flink.runtime.checkpoint.TaskStateStats;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.AccessExecutionGraph;
import org.apache.flink.runtime.executiongraph.AccessExecutionVertex;

/** What a job's execution graph knows of its checkpoints and tasks. */
final class Checkpoints {
    private Checkpoints() {}

    static List<AbstractCheckpointStats> all(AccessExecutionGraph graph) {
        var snapshot = graph.getCheckpointStatsSnapshot();
        if (snapshot == null) {
            return List.of();
        }
        return snapshot.getHistory().getCheckpoints().stream()
                .sorted(Comparator.comparingLong(AbstractCheckpointStats::getCheckpointId))
                .toList();
    }

    /** Completed checkpoints that were triggered after a moment. */
    static Stream<AbstractCheckpointStats> completedSince(AccessExecutionGraph graph, long ms) {
        return all(graph).stream()
                .filter(it -> it.getStatus() == CheckpointStatsStatus.COMPLETED && it.getTriggerTimestamp() > ms);
    }

    static List<Map<String, Object>> describe(AccessExecutionGraph graph) {
        List<Map<String, Object>> described = new ArrayList<>();
        for (AbstractCheckpointStats checkpoint : all(graph)) {
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("id", checkpoint.getCheckpointId());
            one.put("status", checkpoint.getStatus().name());
            one.put("type", checkpoint.getProperties().getCheckpointType().getName());
            one.put("trigger", checkpoint.getTriggerTimestamp());
            one.put("endToEndMs", checkpoint.getEndToEndDuration());
            one.put("subtasks", checkpoint.getNumberOfSubtasks());
            one.put("acknowledged", checkpoint.getNumberOfAcknowledgedSubtasks());
            one.put("stateBytes", checkpoint.getStateSize());
            one.put("processedBytes", checkpoint.getProcessedData());
            one.put("persistedBytes", checkpoint.getPersistedData());
            one.put("unaligned", checkpoint.isUnalignedCheckpoint());
            one.put("maxAlignmentMs", worst(checkpoint));
            described.add(one);
        }
        return described;
    }

    private static long worst(AbstractCheckpointStats checkpoint) {
        long worst = 0;
        for (TaskStateStats task : checkpoint.getAllTaskStateStats()) {
            for (SubtaskStateStats subtask : task.getSubtaskStats()) {
                worst = subtask == null ? worst : Math.max(worst, subtask.getAlignmentDuration());
            }
        }
        return worst;
    }

    /** When the bounded source's last task finished; 0 while one runs. */
    static long boundedFinishedAt(AccessExecutionGraph graph) {
        long finished = 0;
        for (AccessExecutionVertex vertex : graph.getAllExecutionVertices()) {
            if (vertex.getTaskNameWithSubtaskIndex().contains("bounded")) {
                if (vertex.getExecutionState() != ExecutionState.FINISHED) {
                    return 0;
                }
                finished = Math.max(finished, vertex.getStateTimestamp(ExecutionState.FINISHED));
            }
        }
        return finished;
    }

    static double median(List<Long> values) {
        if (values.isEmpty()) {
            return -1;
        }
        List<Long> sorted = values.stream().sorted().toList();
        int half = sorted.size() / 2;
        return sorted.size() % 2 == 1 ? sorted.get(half) : (sorted.get(half - 1) + sorted.get(half)) / 2.0;
    }
}

package bench;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/** Counts rows per key and source in state, passes them on, and fails once when it is asked to. */
final class CountFunction
        extends KeyedProcessFunction<Integer, Tuple4<Long, Integer, Long, Double>, Tuple4<Long, Integer, Long, Double>> {
    private transient ValueState<Long> bounded;
    private transient ValueState<Long> endless;
    private transient boolean seenRow;

    @Override
    public void open(OpenContext context) {
        bounded = getRuntimeContext().getState(new ValueStateDescriptor<>("bounded", Types.LONG));
        endless = getRuntimeContext().getState(new ValueStateDescriptor<>("endless", Types.LONG));
        seenRow = false;
        if (restarted()) {
            Probe.OPENED_AFTER_NS.putIfAbsent(subtask(), System.nanoTime());
        }
    }

    private int subtask() {
        return getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
    }

    private boolean restarted() {
        return getRuntimeContext().getTaskInfo().getAttemptNumber() > 0;
    }

    @Override
    public void processElement(
            Tuple4<Long, Integer, Long, Double> row, Context context, Collector<Tuple4<Long, Integer, Long, Double>> out)
            throws Exception {
        if (!seenRow) {
            seenRow = true;
            Probe.FIRST_PROCESSED_MS.compareAndSet(0, Probe.now());
            if (restarted()) {
                Probe.FIRST_AFTER_NS.putIfAbsent(subtask(), System.nanoTime());
            }
        }
        if (Probe.failNow && subtask() == 0 && Probe.FAILED_NS.compareAndSet(0, System.nanoTime())) {
            throw new IllegalStateException("asked to fail");
        }
        boolean ofBounded = row.f0 >= 0;
        ValueState<Long> state = ofBounded ? bounded : endless;
        long count = (state.value() == null ? 0 : state.value()) + 1;
        state.update(count);
        Probe.COUNTS.put((ofBounded ? "b" : "u") + row.f1, count);
        out.collect(row);
    }
}

package bench;

import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.AbstractStreamOperatorFactory;
import org.apache.flink.streaming.api.operators.BoundedOneInput;
import org.apache.flink.streaming.api.operators.ChainingStrategy;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperatorFactory;
import org.apache.flink.streaming.api.operators.StreamOperator;
import org.apache.flink.streaming.api.operators.StreamOperatorParameters;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/** Passes rows on and marks the first and last one, the end of input, finish and close of its subtask. */
final class MarkOperator<T> extends AbstractStreamOperator<T> implements OneInputStreamOperator<T, T>, BoundedOneInput {
    private final String name;
    private transient long first;
    private transient long last;
    private transient long rows;

    private MarkOperator(StreamOperatorParameters<T> parameters, String name) {
        super(parameters);
        this.name = name;
    }

    private void mark(String event, long value) {
        var task = getRuntimeContext().getTaskInfo();
        Probe.MARKS.add(new Probe.Mark(name + "." + event, task.getIndexOfThisSubtask(), task.getAttemptNumber(), value));
    }

    @Override
    public void open() throws Exception {
        super.open();
        mark("open", Probe.now());
    }

    @Override
    public void processElement(StreamRecord<T> row) {
        last = Probe.now();
        if (rows++ == 0) {
            first = last;
        }
        output.collect(row);
    }

    @Override
    public void endInput() {
        mark("first", first);
        mark("last", last);
        mark("endInput", Probe.now());
        mark("count", rows);
    }

    @Override
    public void finish() throws Exception {
        super.finish();
        mark("finish", Probe.now());
    }

    @Override
    public void close() throws Exception {
        super.close();
        mark("close", Probe.now());
    }

    @Override
    public void notifyCheckpointComplete(long id) throws Exception {
        super.notifyCheckpointComplete(id);
        if (last > 0) {
            mark("notify#" + id, Probe.now());
        }
    }

    /** Always chained to the source, so that a mark is made in the source's own thread. */
    static final class Factory<T> extends AbstractStreamOperatorFactory<T> implements OneInputStreamOperatorFactory<T, T> {
        private final String name;

        Factory(String name) {
            this.name = name;
            chainingStrategy = ChainingStrategy.ALWAYS;
        }

        @Override
        @SuppressWarnings("unchecked")
        public <O extends StreamOperator<T>> O createStreamOperator(StreamOperatorParameters<T> parameters) {
            return (O) new MarkOperator<>(parameters, name);
        }

        @Override
        @SuppressWarnings("rawtypes")
        public Class<? extends StreamOperator> getStreamOperatorClass(ClassLoader loader) {
            return MarkOperator.class;
        }
    }
}

package bench;

import java.lang.management.ManagementFactory;
import java.util.Map;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/** From nothing to the end of a job of a hundred rows: the price of a start. */
final class TrivialCase {
    private TrivialCase() {}

    static Map<String, Object> run() throws Exception {
        long jvm = ManagementFactory.getRuntimeMXBean().getStartTime();
        long main = Probe.now();
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        environment.setParallelism(2);
        environment.fromSequence(1, 100).sinkTo(new DiscardingSink<>());
        JobExecutionResult result = environment.execute();
        return Map.of(
                "jvmToMainMs", main - jvm, "mainToJobDoneMs", Probe.now() - main, "netRuntimeMs", result.getNetRuntime());
    }
}

package bench;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.runtime.checkpoint.AbstractCheckpointStats;
import org.apache.flink.runtime.executiongraph.AccessExecutionGraph;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/** How long a checkpoint takes while a slow function holds up a fast source. */
final class BackpressureCase {
    private static final TypeInformation<Tuple3<Long, Integer, byte[]>> TYPE =
            Types.TUPLE(Types.LONG, Types.INT, Types.PRIMITIVE_ARRAY(Types.BYTE));

    private BackpressureCase() {}

    static Map<String, Object> run(Arguments arguments, Path work) throws Exception {
        var conf = Cluster.configuration(arguments, work);
        setMode(conf, arguments);
        try (MiniCluster cluster = Cluster.start(arguments, conf)) {
            JobGraph job = job(arguments, conf);
            long begin = Probe.now();
            long warm = begin + arguments.number("warmSec", 5) * 1000;
            long end = begin + arguments.number("runSec", 40) * 1000;
            long wanted = arguments.number("want", 5);
            cluster.submitJob(job).get();
            List<Long> backlog = new ArrayList<>();
            long processedBefore = -1;
            long measuredFrom = 0;
            AccessExecutionGraph graph = cluster.getExecutionGraph(job.getJobID()).get();
            while (Probe.now() < end && Checkpoints.completedSince(graph, warm).count() < wanted) {
                Thread.sleep(100);
                graph = cluster.getExecutionGraph(job.getJobID()).get();
                if (Probe.now() > warm) {
                    backlog.add(Probe.EMITTED.get() - Probe.PROCESSED.get());
                    if (processedBefore < 0) {
                        processedBefore = Probe.PROCESSED.get();
                        measuredFrom = Probe.now();
                    }
                }
            }
            double perSecond = (Probe.PROCESSED.get() - processedBefore) * 1000.0 / (Probe.now() - measuredFrom);
            long stored = Output.size(work.resolve("checkpoints"));
            List<Map<String, Object>> described = Checkpoints.describe(graph);
            List<AbstractCheckpointStats> counted = Checkpoints.completedSince(graph, warm).toList();
            cluster.cancelJob(job.getJobID()).get();
            cluster.requestJobResult(job.getJobID()).get();
            List<Long> times = counted.stream().map(AbstractCheckpointStats::getEndToEndDuration).toList();
            List<Long> persisted = counted.stream().map(AbstractCheckpointStats::getPersistedData).toList();
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("n", counted.size());
            result.put("unaligned", counted.stream().filter(AbstractCheckpointStats::isUnalignedCheckpoint).count());
            result.put("endToEndMinMs", times.stream().mapToLong(it -> it).min().orElse(-1));
            result.put("endToEndMedianMs", Checkpoints.median(times));
            result.put("endToEndMaxMs", times.stream().mapToLong(it -> it).max().orElse(-1));
            result.put("persistedMedianBytes", Checkpoints.median(persisted));
            result.put("backlogMedianRows", Checkpoints.median(backlog));
            result.put("rowsPerSec", Math.round(perSecond));
            result.put("storedBytes", stored);
            result.put("checkpoints", described);
            return result;
        }
    }

    private static void setMode(Configuration conf, Arguments arguments) {
        String mode = arguments.text("mode", "aligned");
        conf.setString("execution.checkpointing.unaligned.enabled", String.valueOf(mode.startsWith("unaligned")));
        if (mode.equals("unaligned-timeout")) {
            conf.setString("execution.checkpointing.aligned-checkpoint-timeout", arguments.text("alignTimeout", "1 s"));
        }
        if (mode.endsWith("debloat")) {
            conf.setString("taskmanager.network.memory.buffer-debloat.enabled", "true");
        }
        conf.setString("taskmanager.memory.segment-size", arguments.text("segment", "32kb"));
    }

    private static JobGraph job(Arguments arguments, Configuration conf) {
        var environment = Cluster.environment(arguments, conf);
        byte[] padding = new byte[(int) arguments.number("pad", 64)];
        new Random(1).nextBytes(padding);
        GeneratorFunction<Long, Tuple3<Long, Integer, byte[]>> row =
                index -> {
                    Probe.EMITTED.incrementAndGet();
                    return Tuple3.of(index, (int) (index % 1000), padding);
                };
        var source = new DataGeneratorSource<>(row, Long.MAX_VALUE, TYPE);
        DataStream<Tuple3<Long, Integer, byte[]>> rows =
                environment.fromSource(source, WatermarkStrategy.noWatermarks(), "fast");
        for (long hop = 0; hop < arguments.number("hops", 0); hop++) {
            rows = rows.rebalance().map(it -> it).returns(TYPE).disableChaining().name("hop" + hop);
        }
        rows.keyBy(it -> it.f1)
                .process(new Slow(arguments.number("sleepUs", 1000) * 1000))
                .returns(TYPE)
                .name("slow")
                .sinkTo(new DiscardingSink<>());
        return environment.getStreamGraph().getJobGraph();
    }

    private static final class Slow
            extends KeyedProcessFunction<Integer, Tuple3<Long, Integer, byte[]>, Tuple3<Long, Integer, byte[]>> {
        private final long nanos;
        private transient ValueState<Long> count;

        Slow(long nanos) {
            this.nanos = nanos;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(
                Tuple3<Long, Integer, byte[]> row, Context context, Collector<Tuple3<Long, Integer, byte[]>> out)
                throws Exception {
            count.update((count.value() == null ? 0 : count.value()) + 1);
            if (nanos > 0) {
                LockSupport.parkNanos(nanos);
            }
            Probe.PROCESSED.incrementAndGet();
            out.collect(row);
        }
    }
}

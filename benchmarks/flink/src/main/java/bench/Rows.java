package bench;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Rows (id, key, time in ms, value) of a bounded source, ids from 0, and of an endless one, ids below 0. */
final class Rows {
    static final TypeInformation<Tuple4<Long, Integer, Long, Double>> TYPE =
            Types.TUPLE(Types.LONG, Types.INT, Types.LONG, Types.DOUBLE);

    private static final long START_MS = 1_700_000_000_000L;

    private Rows() {}

    /** Ends after `count` rows; `perSecond` 0 is as fast as it can. */
    static DataStream<Tuple4<Long, Integer, Long, Double>> bounded(
            StreamExecutionEnvironment environment, long count, long perSecond) {
        GeneratorFunction<Long, Tuple4<Long, Integer, Long, Double>> row =
                index -> {
                    Probe.GENERATED_BOUNDED.incrementAndGet();
                    return row(index, index);
                };
        var source =
                perSecond > 0
                        ? new DataGeneratorSource<>(row, count, RateLimiterStrategy.perSecond(perSecond), TYPE)
                        : new DataGeneratorSource<>(row, count, TYPE);
        return environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "bounded")
                .transform("mark", TYPE, new MarkOperator.Factory<>("src"));
    }

    /** Never ends. */
    static DataStream<Tuple4<Long, Integer, Long, Double>> endless(StreamExecutionEnvironment environment, long perSecond) {
        GeneratorFunction<Long, Tuple4<Long, Integer, Long, Double>> row =
                index -> {
                    Probe.GENERATED_RATE.incrementAndGet();
                    return row(-1 - index, index);
                };
        var source = new DataGeneratorSource<>(row, Long.MAX_VALUE, RateLimiterStrategy.perSecond(perSecond), TYPE);
        return environment.fromSource(source, WatermarkStrategy.noWatermarks(), "rate");
    }

    private static Tuple4<Long, Integer, Long, Double> row(long id, long index) {
        return Tuple4.of(id, (int) (index % 1000), START_MS + index, index * 0.5);
    }
}

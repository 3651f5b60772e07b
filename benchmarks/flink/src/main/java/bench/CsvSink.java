package bench;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import org.apache.flink.api.common.serialization.BulkWriter;
import org.apache.flink.api.common.serialization.Encoder;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.fs.FSDataOutputStream;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/** Flink's exactly-once file sink with CSV lines: `csvbulk` (buffered), `csvrow` (a write per row), or `discard`. */
final class CsvSink {
    private CsvSink() {}

    static boolean writes(Arguments arguments) {
        return !arguments.text("sink", "csvbulk").equals("discard");
    }

    static void attach(DataStream<Tuple4<Long, Integer, Long, Double>> rows, Arguments arguments, Path folder) {
        if (!writes(arguments)) {
            rows.sinkTo(new DiscardingSink<>());
            return;
        }
        var path = new org.apache.flink.core.fs.Path("file://" + folder);
        boolean perRow = arguments.text("sink", "csvbulk").equals("csvrow");
        Encoder<Tuple4<Long, Integer, Long, Double>> encoder = (row, out) -> out.write(line(row));
        var sink =
                perRow
                        ? FileSink.forRowFormat(path, encoder).withRollingPolicy(OnCheckpointRollingPolicy.build()).build()
                        : FileSink.forBulkFormat(path, new Bulk()).build();
        rows.sinkTo(sink).name("filesink");
    }

    private static byte[] line(Tuple4<Long, Integer, Long, Double> row) {
        String line = row.f0 + "," + row.f1 + "," + row.f2 + "," + row.f3 + "\n";
        return line.getBytes(StandardCharsets.ISO_8859_1);
    }

    private static final class Bulk implements BulkWriter.Factory<Tuple4<Long, Integer, Long, Double>> {
        @Override
        public BulkWriter<Tuple4<Long, Integer, Long, Double>> create(FSDataOutputStream out) {
            BufferedOutputStream buffered = new BufferedOutputStream(out, 1 << 16);
            return new BulkWriter<>() {
                @Override
                public void addElement(Tuple4<Long, Integer, Long, Double> row) throws IOException {
                    buffered.write(line(row));
                }

                @Override
                public void flush() throws IOException {
                    buffered.flush();
                }

                @Override
                public void finish() throws IOException {
                    buffered.flush();
                }
            };
        }
    }
}

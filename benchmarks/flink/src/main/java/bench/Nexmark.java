package bench;

import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.TableDescriptor;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * One query of Nexmark to the end of its input: main class of a local process, and of an application cluster.
 *
 * <p>Arguments: conf=, a folder with config.yaml, in a local process alone; script=, a file of statements, the last of
 * them the query; out=, the folder of its rows, or sink=blackhole.
 */
public final class Nexmark {
    private Nexmark() {}

    public static void main(String[] given) throws Exception {
        Arguments arguments = Arguments.of(given, 0);
        boolean local = arguments.has("conf");
        Configuration conf =
                local ? GlobalConfiguration.loadConfiguration(arguments.text("conf", "")) : new Configuration();
        var tables = StreamTableEnvironment.create(StreamExecutionEnvironment.getExecutionEnvironment(conf));
        String[] statements = Files.readString(Path.of(arguments.text("script", ""))).split(";\\s*\n");
        for (int i = 0; i < statements.length - 1; i++) {
            tables.executeSql(statements[i]);
        }
        var sink = TableDescriptor.forConnector(arguments.text("sink", NexmarkTables.CONNECTOR));
        if (arguments.has("out")) {
            sink.option(NexmarkTables.PATH, arguments.text("out", ""));
        }
        tables.sqlQuery(statements[statements.length - 1]).executeInsert(sink.build()).await();
        if (local) {
            // Threads of the cluster would keep the process alive for seconds.
            Runtime.getRuntime().halt(0);
        }
    }
}

package bench;

import java.nio.file.Path;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** The embedded cluster of a run. */
final class Cluster {
    private Cluster() {}

    static long parallelism(Arguments arguments) {
        return arguments.number("par", 2);
    }

    /** Checkpoints to files; arguments that begin with "conf." are Flink's own settings. */
    static Configuration configuration(Arguments arguments, Path work) {
        Configuration conf = new Configuration();
        conf.setString("execution.checkpointing.interval", arguments.text("interval", "1000") + " ms");
        conf.setString("execution.checkpointing.storage", "filesystem");
        conf.setString("execution.checkpointing.dir", "file://" + work + "/checkpoints");
        conf.setString("execution.checkpointing.savepoint-dir", "file://" + work + "/savepoints");
        conf.setString("execution.checkpointing.num-retained", arguments.text("retained", "1"));
        conf.setString("state.backend.type", arguments.text("backend", "hashmap"));
        if (arguments.has("aftertasks")) {
            conf.setString("execution.checkpointing.checkpoints-after-tasks-finish", arguments.text("aftertasks", "true"));
        }
        conf.setString("web.checkpoints.history", "100000");
        conf.setString("taskmanager.memory.network.min", arguments.text("net", "128mb"));
        conf.setString("taskmanager.memory.network.max", arguments.text("net", "128mb"));
        conf.setString("taskmanager.memory.managed.size", "128mb");
        conf.setString("rest.bind-port", "0");
        conf.setString("jobmanager.rpc.port", "0");
        String restart = arguments.text("restart", "fixed-delay");
        if (restart.equals("fixed-delay")) {
            conf.setString("restart-strategy.fixed-delay.attempts", "10");
            conf.setString("restart-strategy.fixed-delay.delay", arguments.text("delay", "0 s"));
        }
        if (!restart.equals("default")) {
            conf.setString("restart-strategy.type", restart);
        }
        for (Map.Entry<String, String> entry : arguments.all().entrySet()) {
            if (entry.getKey().startsWith("conf.")) {
                conf.setString(entry.getKey().substring("conf.".length()), entry.getValue());
            }
        }
        return conf;
    }

    static MiniCluster start(Arguments arguments, Configuration conf) throws Exception {
        int managers = (int) arguments.number("tms", 1);
        int slots = (int) (parallelism(arguments) + managers - 1) / managers;
        MiniCluster cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setConfiguration(conf)
                                .setNumTaskManagers(managers)
                                .setNumSlotsPerTaskManager(slots)
                                .build());
        cluster.start();
        return cluster;
    }

    static StreamExecutionEnvironment environment(Arguments arguments, Configuration conf) {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(conf);
        environment.setParallelism((int) parallelism(arguments));
        return environment;
    }
}

package bench;

import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;

/** Runs one case in an embedded cluster and prints one JSON object. */
public final class Main {
    private Main() {}

    public static void main(String[] given) throws Exception {
        String name = given[0];
        Arguments arguments = Arguments.of(given, 1);
        Path work = Path.of(arguments.text("work", "out/flink/work/" + ProcessHandle.current().pid()));
        Files.createDirectories(work);
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("bench", name);
        result.put("args", arguments.all());
        result.put("load1", system.getSystemLoadAverage());
        try {
            result.putAll(run(name, arguments, work));
        } finally {
            if (!arguments.flag("keep", false)) {
                Output.delete(work);
            }
        }
        result.put("cpuMs", system.getProcessCpuTime() / 1_000_000);
        System.out.println(new ObjectMapper().writeValueAsString(result));
        System.out.flush();
        // Threads of the cluster would keep the process alive for seconds.
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> run(String name, Arguments arguments, Path work) throws Exception {
        return switch (name) {
            case "bounded" -> BoundedCase.run(arguments, work);
            case "mixed" -> MixedCase.run(arguments, work);
            case "restart" -> RestartCase.run(arguments, work);
            case "backpressure" -> BackpressureCase.run(arguments, work);
            case "trivial" -> TrivialCase.run();
            default -> throw new IllegalArgumentException("unknown case " + name);
        };
    }
}

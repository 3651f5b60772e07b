package bench;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.BitSet;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;

/** What the file sink has made visible, read back and counted by content. */
final class Output {
    private Output() {}

    static Map<String, Object> count(Path folder, long expected) throws IOException {
        BitSet bounded = new BitSet();
        Set<Long> endless = new HashSet<>();
        long rows = 0;
        long boundedTwice = 0;
        long endlessTwice = 0;
        long uncommitted = 0;
        long files = 0;
        long bytes = 0;
        for (Path path : files(folder)) {
            String name = path.getFileName().toString();
            if (name.startsWith(".") || name.startsWith("_")) {
                uncommitted++;
                continue;
            }
            files++;
            bytes += Files.size(path);
            try (BufferedReader reader = Files.newBufferedReader(path, StandardCharsets.ISO_8859_1)) {
                for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                    long id = Long.parseLong(line.substring(0, line.indexOf(',')));
                    rows++;
                    if (id < 0) {
                        endlessTwice += endless.add(id) ? 0 : 1;
                    } else if (bounded.get((int) id)) {
                        boundedTwice++;
                    } else {
                        bounded.set((int) id);
                    }
                }
            }
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("rows", rows);
        found.put("expected", expected);
        found.put("distinctBounded", bounded.cardinality());
        found.put("dupBounded", boundedTwice);
        found.put("distinctRate", endless.size());
        found.put("dupRate", endlessTwice);
        found.put("files", files);
        found.put("bytes", bytes);
        found.put("uncommittedFiles", uncommitted);
        return found;
    }

    /** Bytes under a folder; files that go away meanwhile are left out. */
    static long size(Path folder) throws IOException {
        long size = 0;
        for (Path path : files(folder)) {
            size += path.toFile().length();
        }
        return size;
    }

    static void delete(Path folder) throws IOException {
        if (Files.exists(folder)) {
            try (Stream<Path> paths = Files.walk(folder)) {
                paths.sorted(Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
            }
        }
    }

    private static List<Path> files(Path folder) throws IOException {
        if (!Files.exists(folder)) {
            return List.of();
        }
        try (Stream<Path> paths = Files.walk(folder)) {
            return paths.filter(Files::isRegularFile).toList();
        }
    }
}

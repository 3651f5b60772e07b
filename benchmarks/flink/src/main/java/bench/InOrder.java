package bench;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.TreeSet;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;

/**
 * Hands out files in the order of their names, also those that come back after a failure.
 *
 * <p>So each reader's files, and with them its watermarks, only go forward. Those that come back were handed out after
 * the checkpoint from which all readers go on, and so they are behind all that the readers had read by then. Between
 * readers the least watermark counts.
 *
 * <p>Each step is a line of a file: milliseconds since 1970, "file", "none", "snapshot" or
 * "restored", and how many files were handed out by then.
 */
final class InOrder implements FileSplitAssigner {
    private final TreeSet<FileSourceSplit> left =
            new TreeSet<>(Comparator.comparing((FileSourceSplit split) -> split.path().toString()));
    private final Path log;

    private final int files;

    private InOrder(Path log, int files, Collection<FileSourceSplit> splits) {
        this.log = log;
        this.files = files;
        addSplits(splits);
    }

    static FileSplitAssigner.Provider of(String folder, String log) {
        int files = Path.of(folder).toFile().list().length;
        return splits -> new InOrder(Path.of(log), files, splits);
    }

    @Override
    public Optional<FileSourceSplit> getNext(String host) {
        FileSourceSplit next = left.pollFirst();
        log(next == null ? "none" : "file");
        return Optional.ofNullable(next);
    }

    @Override
    public void addSplits(Collection<FileSourceSplit> splits) {
        left.addAll(splits);
        log("restored");
    }

    @Override
    public Collection<FileSourceSplit> remainingSplits() {
        log("snapshot");
        return List.copyOf(left);
    }

    private void log(String step) {
        String line = System.currentTimeMillis() + " " + step + " " + (files - left.size()) + "\n";
        try {
            Files.writeString(log, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException problem) {
            throw new UncheckedIOException(problem);
        }
    }
}

package bench;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.enumerate.NonSplittingRecursiveEnumerator;
import org.apache.flink.connector.file.src.reader.BulkFormat;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.formats.parquet.row.ParquetRowDataBuilder;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkV2Provider;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.LookupTableSource;
import org.apache.flink.table.connector.source.ScanTableSource;
import org.apache.flink.table.connector.source.SourceProvider;
import org.apache.flink.table.connector.source.abilities.SupportsProjectionPushDown;
import org.apache.flink.table.connector.source.lookup.LookupFunctionProvider;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.table.factories.DynamicTableSourceFactory;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.LookupFunction;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;

/**
 * Folders of Parquet files as tables of SQL, by Flink's own file source and sink.
 *
 * <p>Its connector "filesystem" is not used because it hands out files from the end of their list.
 */
public final class NexmarkTables implements DynamicTableSourceFactory, DynamicTableSinkFactory {
    static final String CONNECTOR = "nexmark";
    static final String PATH = "path";

    @Override
    public String factoryIdentifier() {
        return CONNECTOR;
    }

    @Override
    public Set<ConfigOption<?>> requiredOptions() {
        return Set.of();
    }

    @Override
    public Set<ConfigOption<?>> optionalOptions() {
        return Set.of();
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        var options = context.getCatalogTable().getOptions();
        return new Source(options.get(PATH), options.get("log"), context.getPhysicalRowDataType());
    }

    @Override
    public DynamicTableSink createDynamicTableSink(Context context) {
        String path = context.getCatalogTable().getOptions().get(PATH);
        return new Sink(path, (RowType) context.getPhysicalRowDataType().getLogicalType());
    }

    private static ParquetColumnarRowInputFormat<FileSourceSplit> format(RowType type, TypeInformation<RowData> info) {
        return new ParquetColumnarRowInputFormat<>(hadoop(), type, info, 2048, true, true);
    }

    private static org.apache.hadoop.conf.Configuration hadoop() {
        return new org.apache.hadoop.conf.Configuration();
    }

    private static final class Source implements ScanTableSource, LookupTableSource, SupportsProjectionPushDown {
        private final String path;
        private final String log;
        private DataType type;

        Source(String path, String log, DataType type) {
            this.path = path;
            this.log = log;
            this.type = type;
        }

        @Override
        public ChangelogMode getChangelogMode() {
            return ChangelogMode.insertOnly();
        }

        @Override
        public boolean supportsNestedProjection() {
            return false;
        }

        @Override
        public void applyProjection(int[][] fields, DataType produced) {
            type = produced;
        }

        @Override
        public ScanRuntimeProvider getScanRuntimeProvider(ScanContext context) {
            var format = format((RowType) type.getLogicalType(), context.createTypeInformation(type));
            return SourceProvider.of(
                    FileSource.forBulkFileFormat(format, new Path(path))
                            .setFileEnumerator(NonSplittingRecursiveEnumerator::new)
                            .setSplitAssigner(InOrder.of(path, log))
                            .build());
        }

        @Override
        public LookupRuntimeProvider getLookupRuntimeProvider(LookupContext context) {
            return LookupFunctionProvider.of(
                    new Side(path, (RowType) type.getLogicalType(), context.createTypeInformation(type)));
        }

        @Override
        public DynamicTableSource copy() {
            return new Source(path, log, type);
        }

        @Override
        public String asSummaryString() {
            return CONNECTOR;
        }
    }

    /** The values of the keys of a table that does not change: a BIGINT and a STRING. */
    public static final class Side extends LookupFunction {
        private final String path;
        private final RowType type;
        private final TypeInformation<RowData> info;
        private transient Map<Long, List<RowData>> rows;

        Side(String path, RowType type, TypeInformation<RowData> info) {
            this.path = path;
            this.type = type;
            this.info = info;
        }

        @Override
        public void open(FunctionContext context) throws Exception {
            rows = new HashMap<>();
            Path folder = new Path(path);
            for (var split : new NonSplittingRecursiveEnumerator().enumerateSplits(new Path[] {folder}, 1)) {
                try (BulkFormat.Reader<RowData> reader = format(type, info).createReader(new Configuration(), split)) {
                    for (var batch = reader.readBatch(); batch != null; batch = reader.readBatch()) {
                        for (var next = batch.next(); next != null; next = batch.next()) {
                            long key = next.getRecord().getLong(0);
                            StringData value = StringData.fromString(next.getRecord().getString(1).toString());
                            rows.computeIfAbsent(key, any -> new ArrayList<>()).add(GenericRowData.of(key, value));
                        }
                        batch.releaseBatch();
                    }
                }
            }
        }

        @Override
        public Collection<RowData> lookup(RowData key) {
            return rows.getOrDefault(key.getLong(0), List.of());
        }
    }

    private record Sink(String path, RowType type) implements DynamicTableSink {
        @Override
        public ChangelogMode getChangelogMode(ChangelogMode requested) {
            return ChangelogMode.insertOnly();
        }

        @Override
        public SinkRuntimeProvider getSinkRuntimeProvider(Context context) {
            return SinkV2Provider.of(
                    FileSink.forBulkFormat(
                                    new Path(path), ParquetRowDataBuilder.createWriterFactory(type, hadoop(), true))
                            .withBucketAssigner(new BasePathBucketAssigner<>())
                            .withRollingPolicy(OnCheckpointRollingPolicy.build())
                            .build());
        }

        @Override
        public DynamicTableSink copy() {
            return this;
        }

        @Override
        public String asSummaryString() {
            return CONNECTOR;
        }
    }
}

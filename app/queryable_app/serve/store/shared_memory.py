"""Configure RocksDB: the memory that all stores of a node share, and the options of each."""

from __future__ import annotations

from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    WriteBufferManager,
)

from queryable_app.policy.descriptor_plan import STORE_FILES_MIN

_MB: Final = 1 << 20
_MEMTABLE_BYTES_MIN: Final = 2 * _MB
_MEMTABLE_BYTES_MAX: Final = (
    8 * _MB
)  # in a larger one, a write costs the event loop more: up to twice as much at 64 MB
_ARENA_BLOCK_BYTES: Final = 64 * 1024  # every idle store would pay RocksDB's default of 1 MB twice
_MEMTABLE_BLOOM_RATIO: Final = 0.02  # of a memtable: 16 bits for each row of 100 bytes
_HASH_RATIO: Final = 0.75  # of keys to buckets in a block
_KEYS_OF_BUCKET: Final = 4  # so many keys of a block a point read compares at most; RocksDB's default is 16
_ENTRY_BYTES_UNKNOWN: Final = 0  # the cache's table grows with its entries
_WAL_BYTES_MAX: Final = 64 * _MB  # read again after a crash, before the store answers
_LEVEL_0_FILES: Final = 4  # from as many on, they are compacted
_LEVEL_0_FILES_WHILE_FILLING: Final = 16
_LEVEL_0_FILES_BEHIND: Final = 16  # as many more, and writes become slow; twice as many, and they wait

FILLING: Final = {"level0_file_num_compaction_trigger": str(_LEVEL_0_FILES_WHILE_FILLING)}
"""The setting of a family that is filled from empty: each of its rows is compacted fewer times, and reads look at more files."""

FILLED: Final = {"level0_file_num_compaction_trigger": str(_LEVEL_0_FILES)}


class SharedMemory:
    """Share one block cache and one memtable budget between a node's stores, and limit the files that each keeps open."""

    def __init__(
        self,
        block_cache_mb: int = 128,
        write_buffer_mb: int = 64,
        stores: int = 1,
        files_max: int = STORE_FILES_MIN,
    ) -> None:
        self.files_max = files_max
        """The number of table files that each store keeps open. A read of another file opens it again."""
        self.block_cache_bytes = block_cache_mb * _MB
        # A look-up takes no lock and no list's head: a point read takes a fifth less in RocksDB than with the LRU cache.
        self.cache = Cache.new_hyper_clock_cache(self.block_cache_bytes, _ENTRY_BYTES_UNKNOWN)
        self.write_buffers = WriteBufferManager(write_buffer_mb * _MB, False)
        self._write_buffer_bytes = write_buffer_mb * _MB
        self.memtable_bytes = 0
        self.share(stores)

    def share(self, stores: int) -> None:
        """Divide the memtable budget between the stores that are opened from now on.

        RocksDB's manager flushes only the store that is being written. Without shares the full memtables of idle stores would
        make a busy store flush at every write.
        """
        share = self._write_buffer_bytes // max(1, stores)
        self.memtable_bytes = min(_MEMTABLE_BYTES_MAX, max(_MEMTABLE_BYTES_MIN, share))


def rocksdb_options(
    memory: SharedMemory, memtable_bytes: int, may_be_filling: bool = False, only_ranges: bool = False
) -> Options:
    """Return the options of one column family. `may_be_filling`: it takes that setting. `only_ranges`: none of its keys is read
    alone."""
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    options = Options(raw_mode=True)
    if not only_ranges:
        # Without a filter every read searches the memtable, which costs more than a search of a table file.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(_MEMTABLE_BLOOM_RATIO)
        table.set_bloom_filter(10, False)
        table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())  # point reads search no block
        table.set_data_block_hash_ratio(_HASH_RATIO)
        table.set_block_restart_interval(_KEYS_OF_BUCKET)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(memtable_bytes)
    options.set_arena_block_size(_ARENA_BLOCK_BYTES)
    options.set_atomic_flush(True)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_max_open_files(memory.files_max)
    if may_be_filling:
        behind = _LEVEL_0_FILES_WHILE_FILLING + _LEVEL_0_FILES_BEHIND
        options.set_level_zero_slowdown_writes_trigger(behind)
        options.set_level_zero_stop_writes_trigger(behind + _LEVEL_0_FILES_BEHIND)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(_MB)
    options.set_stats_dump_period_sec(0)
    return options

#include "zarr_reader.h"

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "dali/core/device_guard.h"
#include "rust/cxx.h"

namespace zarr_dali {
namespace {

/// Calls into the core. An error arrives as its text behind one byte that names its kind; the
/// exception's type decides which error Python raises.
template <typename Call>
auto CallCore(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const ::rust::Error& error) {
    const std::string text = error.what();
    if (text[0] == 'A') throw std::invalid_argument(text.substr(1));
    throw std::runtime_error(text[0] == 'R' ? text.substr(1) : text);
  }
}

dali::DALIDataType DaliType(core::ElementType type) {
  switch (type) {
    case core::ElementType::Bool:
      return DALI_BOOL;
    case core::ElementType::Int8:
      return DALI_INT8;
    case core::ElementType::Int16:
      return DALI_INT16;
    case core::ElementType::Int32:
      return DALI_INT32;
    case core::ElementType::Int64:
      return DALI_INT64;
    case core::ElementType::UInt8:
      return DALI_UINT8;
    case core::ElementType::UInt16:
      return DALI_UINT16;
    case core::ElementType::UInt32:
      return DALI_UINT32;
    case core::ElementType::UInt64:
      return DALI_UINT64;
    case core::ElementType::Float16:
      return DALI_FLOAT16;
    case core::ElementType::Float32:
      return DALI_FLOAT;
    case core::ElementType::Float64:
      return DALI_FLOAT64;
  }
  throw std::logic_error("the core named an element type that this shim does not know");
}

/// A list argument; false where the user did not give it. DALI holds numbers of more than 64 bits
/// as something else, which must not be taken for nothing.
template <typename T>
bool ListArgument(const dali::OpSpec& spec, const char* name, ::rust::Vec<T>& list) {
  std::vector<T> values;
  if (!spec.TryGetRepeatedArgument(values, name)) {
    if (!spec.HasArgument(name)) return false;
    throw std::invalid_argument(std::string("argument `") + name +
                                "`: it is no list of numbers that fit into 64 bits");
  }
  for (T value : values) list.push_back(value);
  return true;
}

template <typename Backend>
core::ReaderArgs Arguments(const dali::OpSpec& spec, int max_batch_size) {
  core::ReaderArgs args{};
  for (const auto& path : spec.GetRepeatedArgument<std::string>("path")) {
    args.paths.emplace_back(path);
  }
  args.join = spec.GetArgument<std::string>("join");
  args.per_store = spec.GetArgument<std::string>("per_store");
  std::vector<std::string> arrays;
  spec.TryGetRepeatedArgument(arrays, "arrays");
  for (const auto& array : arrays) args.arrays.emplace_back(array);
  args.follow_links = spec.GetArgument<bool>("follow_links");
  args.storage_options = spec.GetArgument<std::string>("storage_options");
  args.stack = spec.GetArgument<bool>("stack");
  args.stack_channels = spec.GetArgument<bool>("stack_channels");
  args.mask_and_scale = spec.GetArgument<bool>("mask_and_scale");
  dali::DALIDataType dtype;
  if (spec.TryGetArgument(dtype, "dtype")) args.dtype = std::string(dali::TypeName(dtype));
  ListArgument(spec, "mean", args.mean);
  ListArgument(spec, "std", args.std);
  args.normalize = spec.GetArgument<std::string>("normalize");
  args.has_window = ListArgument(spec, "window", args.window);
  args.has_stride = ListArgument(spec, "stride", args.stride);
  args.has_dilation = ListArgument(spec, "dilation", args.dilation);
  args.has_offsets = ListArgument(spec, "offsets", args.offsets);
  args.dimension_offsets = spec.GetArgument<std::string>("dimension_offsets");
  args.has_roi_start = ListArgument(spec, "roi_start", args.roi_start);
  args.has_roi_end = ListArgument(spec, "roi_end", args.roi_end);
  args.select = spec.GetArgument<std::string>("select");
  ListArgument(spec, "exclude", args.exclude);
  ListArgument(spec, "breaks", args.breaks);
  args.samples = spec.GetArgument<std::string>("samples");
  args.weights = spec.GetArgument<std::string>("weights");
  args.samples_per_epoch = spec.GetArgument<int64_t>("samples_per_epoch");
  args.mask = spec.GetArgument<std::string>("mask");
  args.min_foreground = spec.GetArgument<float>("min_foreground");
  args.mask_cache = spec.GetArgument<std::string>("mask_cache");
  args.return_index = spec.GetArgument<bool>("return_index");
  args.initial_fill = spec.GetArgument<int64_t>("initial_fill");
  args.position = spec.GetArgument<std::string>("position");
  args.random_shuffle = spec.GetArgument<bool>("random_shuffle");
  args.seed = spec.GetArgument<int64_t>("seed");
  args.shard_id = spec.GetArgument<int64_t>("shard_id");
  args.num_shards = spec.GetArgument<int64_t>("num_shards");
  args.stick_to_shard = spec.GetArgument<bool>("stick_to_shard");
  args.pad_last_batch = spec.GetArgument<bool>("pad_last_batch");
  args.prefetch_queue_depth = spec.GetArgument<int64_t>("prefetch_queue_depth");
  args.missing_chunks = spec.GetArgument<std::string>("missing_chunks");
  args.decode = spec.GetArgument<std::string>("decode");
  args.gpu_zstd = spec.GetArgument<std::string>("gpu_zstd");
  args.io = spec.GetArgument<std::string>("io");
  args.num_decode_threads = spec.GetArgument<int64_t>("num_decode_threads");
  args.cache_bytes = spec.GetArgument<int64_t>("cache_bytes");
  args.cache_dir = spec.GetArgument<std::string>("cache_dir");
  args.cache_dir_bytes = spec.GetArgument<int64_t>("cache_dir_bytes");
  args.num_io_threads = spec.GetArgument<int64_t>("num_io_threads");
  args.device_memory_budget = spec.GetArgument<int64_t>("device_memory_budget");
  args.host_memory_budget = spec.GetArgument<int64_t>("host_memory_budget");
  args.batch_size = max_batch_size;
  args.device_id =
      std::is_same_v<Backend, dali::GPUBackend> ? spec.GetArgument<int>("device_id") : -1;
  return args;
}

}  // namespace

template <typename Backend>
ZarrReader<Backend>::ZarrReader(const dali::OpSpec& spec)
    : dali::Operator<Backend>(spec), args_(Arguments<Backend>(spec, max_batch_size_)) {
  if (!spec.GetArgument<bool>("lazy_init")) Open();
}

template <typename Backend>
ZarrReader<Backend>::~ZarrReader() {
  // Batches that nobody asked for are freed from the host, behind what the allocation stream has
  // to do: another reader may get that stream, and would wait for nothing of these.
  try {
    dali::DeviceGuard guard(args_.device_id);
    for (auto& slot : slots_) {
      for (auto& list : slot) list.set_order(dali::AccessOrder::host());
    }
    reader_.reset();
    slots_.clear();
  } catch (const std::exception&) {
    // The device is lost and its memory with it; the members' destructors do what is left.
  }
}

template <typename Backend>
core::Reader& ZarrReader<Backend>::Open() const {
  std::lock_guard<std::mutex> lock(open_mutex_);
  if (reader_) return **reader_;

  // The core makes its device's context current, and the thread may be the user's.
  dali::DeviceGuard guard(args_.device_id);
  auto reader = CallCore([&] { return core::open_reader(args_); });
  std::vector<Output> outputs;
  for (const auto& desc : reader->outputs()) {
    Output output;
    output.type = DaliType(desc.element_type);
    const dali::TensorShape<> sample(desc.shape.begin(), desc.shape.end());
    output.shape = dali::uniform_list_shape(max_batch_size_, sample);
    output.layout = dali::TensorLayout(std::string(desc.layout));
    output.bytes = output.shape.num_elements() * dali::TypeTable::GetTypeInfo(output.type).size();
    outputs.push_back(std::move(output));
  }
  const core::Meta meta = reader->meta();
  meta_.epoch_size = meta.epoch_size;
  meta_.epoch_size_padded = meta.epoch_size_padded;
  meta_.number_of_shards = static_cast<int>(meta.number_of_shards);
  meta_.shard_id = static_cast<int>(meta.shard_id);
  meta_.pad_last_batch = meta.pad_last_batch;
  meta_.stick_to_shard = meta.stick_to_shard;
  outputs_ = std::move(outputs);
  reader_ = std::move(reader);
  return **reader_;
}

template <typename Backend>
bool ZarrReader<Backend>::SetupImpl(std::vector<dali::OutputDesc>&, const dali::Workspace&) {
  Open();
  return false;
}

template <typename Backend>
void ZarrReader<Backend>::RunImpl(dali::Workspace& ws) {
  const int batch_size = ws.GetRequestedBatchSize(0);
  if (batch_size != max_batch_size_) {
    throw std::runtime_error(dali::make_string(
        "the Zarr reader was built for batches of ", max_batch_size_, " samples and is asked for ",
        batch_size, ": it reads ahead in whole batches, so every batch needs the same size; give ",
        "the other inputs of the pipeline that size too, or, in dynamic mode, give the reader ",
        "max_batch_size=", batch_size));
  }
  Fill(ws);
  CallCore([&] { (*reader_)->next_batch(); });
  Slot slot = std::move(slots_.front());
  slots_.pop_front();
  HandOut(slot, ws);
  // The next batch is on its way before DALI works on this one.
  Fill(ws);
}

template <typename Backend>
void ZarrReader<Backend>::Fill(const dali::Workspace& ws) {
  core::Reader& reader = **reader_;
  const size_t depth = reader.depth();
  while (slots_.size() < depth) {
    // Queued before it is lent, so that memory that the core writes to can never go away.
    slots_.push_back(Allocate(ws));
    std::vector<size_t> addresses;
    for (auto& list : slots_.back()) {
      addresses.push_back(reinterpret_cast<size_t>(contiguous_raw_mutable_data(list)));
    }
    try {
      CallCore([&] { reader.submit({addresses.data(), addresses.size()}); });
    } catch (...) {
      slots_.pop_back();
      throw;
    }
  }
}

template <typename Backend>
typename ZarrReader<Backend>::Slot ZarrReader<Backend>::Allocate(const dali::Workspace& ws) const {
  dali::DeviceGuard guard(args_.device_id);
  Slot slot(outputs_.size());
  for (size_t k = 0; k < slot.size(); k++) {
    auto& list = slot[k];
    if constexpr (std::is_same_v<Backend, dali::GPUBackend>) {
      const auto stream = CallCore([&] { return (*reader_)->allocation_stream(); });
      list.set_device_id(args_.device_id);
      list.set_order({reinterpret_cast<cudaStream_t>(stream), args_.device_id}, false);
    } else {
      // Pinned exactly where DALI wants it: where a copy to the GPU follows. In host order even
      // then, because the core writes at once and waits for no stream.
      const auto& output = ws.Output<Backend>(k);
      list.set_pinned(output.is_pinned());
      list.set_device_id(output.device_id());
    }
    list.reserve(outputs_[k].bytes);
  }
  return slot;
}

template <typename Backend>
void ZarrReader<Backend>::HandOut(Slot& slot, dali::Workspace& ws) const {
  for (size_t k = 0; k < slot.size(); k++) {
    auto& list = slot[k];
    auto& output = ws.Output<Backend>(k);
    const void* address = contiguous_raw_mutable_data(list);
    // The values are there, whatever stream looks at them, so nothing has to wait. But the memory
    // must be freed in the order of its new owner, and that order can only be changed while the
    // list has no views of its samples. That is why it was reserved and is resized only now.
    list.set_order(std::is_same_v<Backend, dali::GPUBackend> ? ws.output_order() : output.order(),
                   false);
    list.Resize(outputs_[k].shape, outputs_[k].type, dali::BatchContiguity::Contiguous);
    if (contiguous_raw_mutable_data(list) != address) {
      throw std::logic_error("DALI moved a batch while its views were made");
    }
    if (!outputs_[k].layout.empty()) list.SetLayout(outputs_[k].layout);
    for (int i = 0; i < max_batch_size_; i++) {
      const auto source = CallCore([&] { return (*reader_)->source_info(k, i); });
      list.SetSourceInfo(i, std::string(source));
    }
    output = std::move(list);
  }
}

template <typename Backend>
dali::ReaderMeta ZarrReader<Backend>::GetReaderMeta() const {
  core::Reader& reader = Open();
  CallCore([&] { reader.tell(); });
  return meta_;
}

template <typename Backend>
void ZarrReader<Backend>::SaveState(dali::OpCheckpoint& checkpoint, dali::AccessOrder) {
  const auto state = Open().save_state();
  checkpoint.MutableCheckpointState() = std::string(state.begin(), state.end());
}

template <typename Backend>
void ZarrReader<Backend>::RestoreState(const dali::OpCheckpoint& checkpoint) {
  const auto& state = checkpoint.CheckpointState<std::string>();
  const auto* bytes = reinterpret_cast<const uint8_t*>(state.data());
  core::Reader& reader = Open();
  CallCore([&] { reader.restore_state({bytes, state.size()}); });
}

template <typename Backend>
std::string ZarrReader<Backend>::SerializeCheckpoint(const dali::OpCheckpoint& checkpoint) const {
  return checkpoint.CheckpointState<std::string>();
}

template <typename Backend>
void ZarrReader<Backend>::DeserializeCheckpoint(dali::OpCheckpoint& checkpoint,
                                                const std::string& data) const {
  checkpoint.MutableCheckpointState() = data;
}

DALI_REGISTER_OPERATOR(readers__Zarr, ZarrReader<::dali::CPUBackend>, ::dali::CPU);
DALI_REGISTER_OPERATOR(readers__Zarr, ZarrReader<::dali::GPUBackend>, ::dali::GPU);
#ifndef DALI_SCHEMA_ALIAS  // releases before 2.4, see schema.cc
DALI_REGISTER_OPERATOR(ZarrReader, ZarrReader<::dali::CPUBackend>, ::dali::CPU);
DALI_REGISTER_OPERATOR(ZarrReader, ZarrReader<::dali::GPUBackend>, ::dali::GPU);
#endif

}  // namespace zarr_dali

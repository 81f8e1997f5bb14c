#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dali/pipeline/operator/checkpointing/op_checkpoint.h"
#include "dali/pipeline/operator/operator.h"
#include "zarr-dali/src/bridge.rs.h"

namespace zarr_dali {

/// The operator `readers.zarr`. Everything about Zarr, sample order, reading and decoding is in the
/// Rust core (namespace `core`); here its arguments go in and its batches go out.
///
/// Batches are allocated here and lent to the core, several at a time, and go to DALI without a
/// copy. Every batch is new memory that belongs to whoever holds it, so the user may keep it as
/// long as he likes, after the pipeline is gone too.
template <typename Backend>
class ZarrReader : public dali::Operator<Backend> {
 public:
  explicit ZarrReader(const dali::OpSpec& spec);
  ~ZarrReader() override;

  /// Does not wait for data and allocates nothing: a batch comes with its memory in RunImpl.
  bool SetupImpl(std::vector<dali::OutputDesc>& descs, const dali::Workspace& ws) override;
  void RunImpl(dali::Workspace& ws) override;
  bool HasContiguousOutputs() const override { return true; }

  dali::ReaderMeta GetReaderMeta() const override;

  /// A checkpoint holds one `std::string`, opaque bytes of the core: the position after the batch
  /// that was handed out last, not after those that were read ahead.
  void SaveState(dali::OpCheckpoint& checkpoint, dali::AccessOrder order) override;
  void RestoreState(const dali::OpCheckpoint& checkpoint) override;
  std::string SerializeCheckpoint(const dali::OpCheckpoint& checkpoint) const override;
  void DeserializeCheckpoint(dali::OpCheckpoint& checkpoint,
                             const std::string& data) const override;

 private:
  /// What never changes about one output.
  struct Output {
    dali::DALIDataType type;
    dali::TensorListShape<> shape;
    dali::TensorLayout layout;
    size_t bytes;
  };

  /// The memory of one batch, one list per output. Until the batch is handed out a list is only
  /// reserved, not resized; HandOut says why.
  using Slot = std::vector<dali::TensorList<Backend>>;

  /// Opens the dataset unless it is open. Const and locked, because DALI asks for the reader's
  /// metadata from the user's thread while the executor may be running the operator.
  core::Reader& Open() const;
  /// Submits batches until as many are under way as the core wants.
  void Fill(const dali::Workspace& ws);
  Slot Allocate(const dali::Workspace& ws) const;
  void HandOut(Slot& slot, dali::Workspace& ws) const;

  using dali::OperatorBase::max_batch_size_;

  core::ReaderArgs args_;

  mutable std::mutex open_mutex_;
  mutable std::vector<Output> outputs_;
  mutable dali::ReaderMeta meta_;

  /// Lent to `reader_`, oldest first. Declared before it, so that the memory outlives it.
  std::deque<Slot> slots_;
  mutable std::optional<::rust::Box<core::Reader>> reader_;
};

}  // namespace zarr_dali

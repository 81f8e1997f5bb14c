// Gives NVTX's functions to the core: NVTX is a C header, which finds an attached profiler by
// itself.

#include <nvtx3/nvToolsExt.h>

#include <array>
#include <cstdint>

extern "C" void zarr_dali_trace(void (*push)(uint32_t, uint64_t), void (*pop)());

namespace {

// In the order of `Stage` in src/trace.rs.
constexpr std::array<const char*, 5> kStages{"plan", "fetch", "decode on the CPU",
                                             "decode on the GPU", "wait for a batch"};

struct Domain {
  nvtxDomainHandle_t handle = nvtxDomainCreateA("zarr_dali");
  std::array<nvtxStringHandle_t, kStages.size()> names{};

  Domain() {
    for (size_t i = 0; i < kStages.size(); ++i) {
      names[i] = nvtxDomainRegisterStringA(handle, kStages[i]);
    }
  }
};

// Made by the first range and never destroyed, because threads may outlive static objects.
const Domain& TheDomain() {
  static const Domain* domain = new Domain;
  return *domain;
}

void Push(uint32_t stage, uint64_t payload) {
  const Domain& domain = TheDomain();
  // Null where no profiler is attached.
  if (domain.handle == nullptr || stage >= kStages.size()) return;
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  attributes.message.registered = domain.names[stage];
  attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  attributes.payload.ullValue = payload;
  nvtxDomainRangePushEx(domain.handle, &attributes);
}

void Pop() {
  const Domain& domain = TheDomain();
  if (domain.handle != nullptr) nvtxDomainRangePop(domain.handle);
}

[[maybe_unused]] const bool installed = (zarr_dali_trace(Push, Pop), true);

}  // namespace

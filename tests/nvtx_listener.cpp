// Stands in for NVIDIA's profilers, which a program with NVTX ranges loads from
// NVTX_INJECTION64_PATH. Writes the ranges to the file NVTX_LISTENER_LOG:
// "push forward: conv1.weight", "pop".
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

FILE* out = nullptr;

int NVTX_API push(const char* name) {
  std::fprintf(out, "push %s\n", name);
  return 0;
}

int NVTX_API pop() {
  std::fprintf(out, "pop\n");
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t table) {
  const char* log = std::getenv("NVTX_LISTENER_LOG");
  out = log == nullptr ? nullptr : std::fopen(log, "w");
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int count = 0;
  if (out == nullptr || callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &count) == 0 ||
      count <= NVTX_CBID_CORE_RangePop)
    return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

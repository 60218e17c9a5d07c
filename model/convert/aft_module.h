#ifndef AFT_MODEL_CONVERT_AFT_MODULE_H_
#define AFT_MODEL_CONVERT_AFT_MODULE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/convert/source.h"

namespace aft {

// A package's names of an AFT module's linear layers.
struct ProjectionNames {
  std::string q, k, v, out;
};

struct Projections {
  int64_t d = 0;         // width in and out
  int64_t hid = 0;       // width of q, k, v
  bool qkv_bias = true;  // q, k and v have one, or none of them has
};

// The sizes that a source's module must have; kAny where they are still open.
struct ProjectionSizes {
  int64_t d = Source::kAny;
  int64_t hid = Source::kAny;
};

// Takes {q,k,v}.weight [hid, d], {q,k,v}.bias [hid] unless there is no q.bias, out.weight [d, hid],
// out.bias [d], all below `prefix`, and adds mixer.qkv.* and mixer.out.* below `layer` to
// `tensors`.
absl::StatusOr<Projections> TakeProjections(Source& source, const std::string& prefix,
                                            const ProjectionNames& names, const std::string& layer,
                                            TensorMap* tensors, ProjectionSizes sizes = {});

// The config of an architecture "mixer" around these, its kind still to be set.
NetworkConfig MixerModuleConfig(const Projections& projections);

// Makes `config` an AFT-full with the position bias w [T, T], [query, key], or with a window an
// AFT-local of which only the band |t - t'| < window counts, and adds the table to `tensors` below
// `layer`. At most T tokens either way. INVALID_ARGUMENT names `name`, the source's of w.
absl::Status UseBias(const std::string& name, const at::Tensor& w, std::optional<int64_t> window,
                     const std::string& layer, NetworkConfig* config, TensorMap* tensors);

// The band |t - t'| < window of a position bias w [T, T], [query, key], as w.band: causal [T, s],
// column = t - t'; bidirectional [T, 2s - 1], column = t - t' + s - 1. What lies outside of the
// band is dropped; places without a key are 0. REQUIRES: 1 <= window <= T.
at::Tensor BandOf(const at::Tensor& w, int64_t window, bool causal);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_AFT_MODULE_H_

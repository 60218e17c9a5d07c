#ifndef AFT_TESTS_BENCH_MIXERS_HARNESS_H_
#define AFT_TESTS_BENCH_MIXERS_HARNESS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "model/mixers/mixer.h"

namespace aft {

// One decode step written with LibTorch operators, as an application would: the state is whatever
// tensors the closure owns, [B, ...]. Called with packed [B, PackedWidth()], it returns [B, hid].
using PlainStep = std::function<at::Tensor(const at::Tensor& packed)>;

// A mixer to measure. It becomes
//
//   NAME/decode/B:n         one step of n sequences at `position`, each in a slot of its own
//   NAME/decode_plain/B:n   PlainStep on the same sizes
//   NAME/prefill/T:n        Forward of one prompt of n tokens
//   NAME/prefill_plain/T:n  TrainForm of it, without gradients
//   NAME/encode/T:n         the same by Encode; the only ones when the config is not causal
//   NAME/encode_plain/T:n
//
// all on one thread. elements/s counts outputs (tokens * hid); bytes/s what the operator must
// read and write at least, so that it compares with memory_copy.
struct MixerBench {
  std::string name;
  MixerConfig config;
  int64_t hid = 512;
  int64_t max_seq_len = 0;  // MixerOptions
  int64_t position = 1000;  // of the decoded token
  // Sequences of a decode step; 0: as many as fill a pool of 256 MB, beyond every cache.
  std::vector<int64_t> batches = {64, 0};
  std::vector<int64_t> lengths = {128, 1024};  // of prefill and Encode
  // Bytes of state that a step reads and writes per sequence.
  double state_bytes = 0;
  // Makes the plain step for B sequences at `position`; null: decode_plain is left out.
  std::function<PlainStep(const MixerBench&, const MixerTables& tables, int64_t batch)> plain;
};

// Registers the benchmarks of every bench; call it from a static initialiser:
//   [[maybe_unused]] const bool kRegistered = RegisterMixerBenches({...});
// Tables hold small random numbers. A mixer that MakeMixer refuses reports its status as an error.
bool RegisterMixerBenches(const std::vector<MixerBench>& benches);

}  // namespace aft

#endif  // AFT_TESTS_BENCH_MIXERS_HARNESS_H_

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/kernels/aft/aft.h"              // Number
#include "model/kernels/attention/attention.h"  // Score
#include "model/kernels/cuda/types.h"
#include "nlohmann/json.hpp"
#include "tests/bench/cuda/timing.h"

// The parts from which the cases of cuda_kernels_bench are made.
namespace aft::kernels::cuda {

// Sizes; a smoke run divides them.
struct Scale {
  bool smoke = false;
  int64_t hid() const { return smoke ? 64 : 1024; }
  int64_t rows(int64_t full) const { return smoke ? 2 : full; }
  int64_t tokens(int64_t full) const { return smoke ? 70 : full; }
};

// Cases are made one after the other. Each has its own memory, which is freed after the timing.
class Bench {
 public:
  // Add skips cases whose name and shape do not contain `only`. Measures the copy rate.
  Bench(Scale scale, std::string only);

  const Scale& scale() const { return scale_; }

  // Times a case and prints its row of the table.
  void Add(const BenchCase& bench);

  // {"copy_gbs": ..., "cases": [...]}
  const nlohmann::ordered_json& results() const { return results_; }

 private:
  const Scale scale_;
  const std::string only_;
  const double copy_rate_;
  nlohmann::ordered_json results_;
};

// Input and output matrices of one call, as a 16-bit model calls the mixers: fp32 -> bf16.
struct Matrices {
  Matrices(int64_t rows, int64_t packed, int64_t hid)
      : from(Filled(rows * packed, -2, 2)),
        out(static_cast<size_t>(rows * hid)),
        packed_width(packed),
        width(hid) {}
  In in() const { return {from.get(), Number::kFp32, packed_width}; }
  Out y() const { return {out.get(), Number::kBf16, width}; }
  double bytes(int64_t rows) const {
    return static_cast<double>(rows * (packed_width * 4 + width * 2));
  }

  DeviceArray<float> from;
  DeviceArray<uint16_t> out;
  int64_t packed_width;
  int64_t width;
};

// A pool of slots and the rows of a decode step, one for each slot, at `position`.
struct Decode {
  Decode(int64_t count, int64_t slot_floats, int64_t position)
      : rows(count),
        stride((slot_floats + 15) / 16 * 16),
        state(Filled(count * stride, 0.5F, 1.5F)),
        slot(Slots(count)),
        positions(std::vector<int64_t>(static_cast<size_t>(count), position)) {}

  // The slots are not in order: no row has the slot with its own number.
  static std::vector<int32_t> Slots(int64_t count) {
    std::vector<int32_t> slots(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      slots[static_cast<size_t>(i)] = static_cast<int32_t>(count - 1 - i);
    }
    return slots;
  }
  std::string Name(const Matrices& matrices) const {
    return absl::StrCat("B=", rows, " d=", matrices.width, " fp32 -> bf16");
  }
  StepRows step() const {
    StepRows step;
    step.rows = rows;
    step.slot = slot.get();
    step.position = positions.get();
    return step;
  }
  State states() const { return {state.get(), stride}; }

  int64_t rows;
  int64_t stride;
  DeviceArray<float> state;
  DeviceArray<int32_t> slot;
  DeviceArray<int64_t> positions;
};

// Prompts of equal length from position 0.
struct Prompts {
  Prompts(int64_t count, int64_t length)
      : rows(count),
        tokens(count * length),
        longest(length),
        slot(Decode::Slots(count)),
        position(std::vector<int64_t>(static_cast<size_t>(count), 0)),
        offset(Offsets(count, length)) {}

  static std::vector<int64_t> Offsets(int64_t count, int64_t length) {
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i <= count; ++i) offsets.push_back(i * length);
    return offsets;
  }
  std::string Name(const Matrices& matrices) const {
    return absl::StrCat(rows, " x ", longest, " tokens, d=", matrices.width, " fp32 -> bf16");
  }
  ChunkRows chunks() const {
    ChunkRows chunks;
    chunks.rows = rows;
    chunks.slot = slot.get();
    chunks.position = position.get();
    chunks.offset = offset.get();
    chunks.tokens = tokens;
    chunks.longest = longest;
    return chunks;
  }

  int64_t rows;
  int64_t tokens;
  int64_t longest;
  DeviceArray<int32_t> slot;
  DeviceArray<int64_t> position;
  DeviceArray<int64_t> offset;
};

// The cases. AFT-full is a window as long as the text.
void AddAftStep(Bench& bench, int64_t rows, int64_t window, Number ring, bool lookahead,
                int64_t position);
void AddAftPrefill(Bench& bench, int64_t rows, int64_t tokens, int64_t window);
void AddConv(Bench& bench, int64_t heads, int64_t taps);  // step and prefill
void AddAttentionStep(Bench& bench, int64_t rows, Score score, int64_t block_size, int64_t context);
void AddAttentionPrefill(Bench& bench, int64_t rows, int64_t tokens, int64_t block_size);
void AddWkv(Bench& bench);       // both recurrences, step and prefill
void AddRows(Bench& bench);      // norm, activation
void AddProducts(Bench& bench);  // those of our kernels
void AddSamplers(Bench& bench);

}  // namespace aft::kernels::cuda

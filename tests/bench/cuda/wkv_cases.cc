#include <cstdint>

#include "model/kernels/cuda/wkv/wkv.h"
#include "tests/bench/cuda/cases.h"

namespace aft::kernels::cuda {
namespace {

// Adds steps and prompts of one recurrence. `forward` runs rows with matrices and states, which
// have `packed` columns and `state` floats.
template <typename Forward>
void AddRecurrence(Bench& bench, const char* name, int64_t packed, int64_t state,
                   const Forward& forward) {
  const int64_t hid = bench.scale().hid();
  for (const int64_t count : {1, 64, 1024}) {
    const Decode decode(bench.scale().rows(count), state, 1000);
    const Matrices matrices(decode.rows, packed, hid);
    ChunkRows rows;
    rows.rows = rows.tokens = decode.rows;
    rows.slot = decode.slot.get();
    rows.position = decode.positions.get();
    bench.Add(
        {.name = absl::StrCat(name, "_step"),
         .shape = decode.Name(matrices),
         .bytes = 8.0 * static_cast<double>(state * decode.rows) + matrices.bytes(decode.rows),
         .run = [&](Stream stream, int) {
           return forward(rows, matrices, decode.states(), stream);
         }});
  }
  for (const int64_t count : {1, 16}) {
    const Prompts prompts(bench.scale().rows(count), bench.scale().tokens(1024));
    const Decode pool(prompts.rows, state, 0);
    const Matrices matrices(prompts.tokens, packed, hid);
    bench.Add({.name = absl::StrCat(name, "_prefill"),
               .shape = prompts.Name(matrices),
               .bytes = matrices.bytes(prompts.tokens),
               .run = [&](Stream stream, int) {
                 return forward(prompts.chunks(), matrices, pool.states(), stream);
               }});
  }
}

}  // namespace

void AddWkv(Bench& bench) {
  const int64_t hid = bench.scale().hid();
  const DeviceArray<float> tables = Filled(5 * hid, -1, 0);
  const float* const table = tables.get();
  const Wkv4Params four = {hid, table, table + hid};
  AddRecurrence(bench, "wkv4", 3 * hid, Wkv4StateFloats(four),
                [&](const ChunkRows& rows, const Matrices& matrices, State state, Stream stream) {
                  return Wkv4Forward(four, rows, matrices.in(), state, matrices.y(), stream);
                });
  const Wkv7Params seven = {
      hid, hid / 64, table, table + hid, table + 2 * hid, table + 3 * hid, table + 4 * hid};
  AddRecurrence(bench, "wkv7", 6 * hid, Wkv7StateFloats(seven),
                [&](const ChunkRows& rows, const Matrices& matrices, State state, Stream stream) {
                  return Wkv7Forward(seven, rows, matrices.in(), state, matrices.y(), stream);
                });
}

}  // namespace aft::kernels::cuda

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "client/aftctl/stream.h"

namespace aft::client {
namespace {

struct EncodeFlags : StreamFlags {
  v1::Pooling pooling = v1::POOLING_UNSPECIFIED;
  bool normalize = false;
};

// A line for each vector; the numbers read back to the same floats.
std::string Rows(const v1::Vectors& vectors, uint32_t width) {
  std::string rows;
  for (int i = 0; i < vectors.values_size(); ++i) {
    const bool last = static_cast<uint32_t>(i + 1) % width == 0;
    absl::StrAppendFormat(&rows, "%.9g%c", vectors.values(i), last ? '\n' : ' ');
  }
  return rows;
}

int RunEncode(const CommonFlags& common, const EncodeFlags& flags) {
  v1::EncodeRequest request;
  request.set_pooling(flags.pooling);
  request.set_normalize(flags.normalize);
  uint32_t width = 1;
  const auto show = [&](const v1::EncodeResponse& event) {
    if (event.has_started()) width = event.started().width();
    return Rows(event.vectors(), width);
  };
  const auto sum_up = [&](const EncodeResult& result, Output&) {
    PrintSummary(absl::StrFormat(
        "%s | %d vectors of %d | in a batch of %d | %.1f ms", TokenCount(result.started.tokens()),
        result.values.size() / result.started.width(), result.started.width(),
        result.finished.batch_rows(), static_cast<double>(result.duration.count()) / 1e6));
  };
  return RunStream(common, flags, request, &Client::Encode, show, sum_up);
}

}  // namespace

Command AddEncode(CLI::App& app, const CommonFlags& common) {
  static const std::map<std::string, v1::Pooling> kPooling = {{"none", v1::POOLING_UNSPECIFIED},
                                                              {"mean", v1::POOLING_MEAN},
                                                              {"first", v1::POOLING_FIRST},
                                                              {"last", v1::POOLING_LAST}};
  auto owned = std::make_shared<EncodeFlags>();
  EncodeFlags& flags = *owned;
  AddStream(app, "Text to encode", flags);
  app.add_option("--pooling", flags.pooling,
                 "One vector instead of one per token: the mean, or the first or last token's")
      ->transform(CLI::CheckedTransformer(kPooling))
      ->type_name("none|mean|first|last");
  app.add_flag("--normalize", flags.normalize, "Make every vector's Euclidean length 1");
  return [&common, owned] { return RunEncode(common, *owned); };
}

}  // namespace aft::client

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "client/aftctl/in_turn.h"
#include "client/aftctl/stream.h"

namespace aft::client {
namespace {

struct EncodeFlags : StreamFlags {
  v1::Pooling pooling = v1::POOLING_UNSPECIFIED;
  bool normalize = false;
};

// One line for each vector. The numbers have enough digits to read back as the same floats.
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
  std::optional<InTurn> texts;  // their rows
  const auto show = [&](const v1::EncodeResponse& event) -> std::string {
    if (event.has_started()) {
      width = event.started().width();
      texts.emplace(std::max(event.started().text_tokens_size(), 1),
                    flags.pooling == v1::POOLING_UNSPECIFIED);
      return "";
    }
    return texts->Take(event.index(), Rows(event.vectors(), width), event.has_finished());
  };
  const auto sum_up = [&](const EncodeResult& result, Output&) {
    size_t values = result.values.size();
    for (const EncodeOutput& other : result.others) values += other.values.size();
    const std::string texts_encoded =
        result.others.empty() ? "" : absl::StrFormat("%d texts | ", result.others.size() + 1);
    PrintSummary(absl::StrFormat("%s%s | %d vectors of %d | in a batch of %d | %.1f ms",
                                 texts_encoded, TokenCount(result.started.tokens()),
                                 values / result.started.width(), result.started.width(),
                                 result.finished.batch_rows(),
                                 static_cast<double>(result.duration.count()) / 1e6));
  };
  return RunStream(common, flags, request, &Client::Encode, show, sum_up);
}

}  // namespace

Command AddEncode(CLI::App& app, const CommonFlags& common) {
  static const std::map<std::string, v1::Pooling> kPooling = {{"none", v1::POOLING_UNSPECIFIED},
                                                              {"mean", v1::POOLING_MEAN},
                                                              {"first", v1::POOLING_FIRST},
                                                              {"last", v1::POOLING_LAST},
                                                              {"model", v1::POOLING_MODEL}};
  auto owned = std::make_shared<EncodeFlags>();
  EncodeFlags& flags = *owned;
  AddStream(app, "Text to encode", flags);
  AddTexts(app, flags);
  app.add_option(
         "--pooling", flags.pooling,
         "One vector per text instead of one per token: the mean of all tokens, that of the first "
         "or last token, or what the model's config says")
      ->transform(CLI::CheckedTransformer(kPooling))
      ->type_name("none|mean|first|last|model");
  app.add_flag("--normalize", flags.normalize, "Scale every vector to Euclidean length 1");
  return [&common, owned] { return RunEncode(common, *owned); };
}

}  // namespace aft::client

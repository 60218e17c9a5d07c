#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/json.h"
#include "client/aftctl/text_input.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct EncodeFlags {
  TextFlags text;
  CallFlags call;
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
  absl::StatusOr<std::string> text = ReadText(flags.text);
  if (!text.ok()) {
    PrintError("aftctl", text.status().message());
    return kExitUsage;
  }
  v1::EncodeRequest request;
  request.set_model(flags.call.model);
  SetText(*std::move(text), request);
  request.set_pooling(flags.pooling);
  request.set_normalize(flags.normalize);
  uint32_t width = 1;
  return RunStream(
      common, flags.call,
      [&](const StreamCall& call) {
        const auto on_event = [&](const v1::EncodeResponse& event) {
          if (event.has_started()) width = event.started().width();
          const std::string shown =
              flags.call.json ? Line(ToJson(event, width)) : Rows(event.vectors(), width);
          if (!call.output.Write(shown)) call.cancel.Cancel();
        };
        const auto result = call.client.Encode(request, on_event, call.options);
        if (!result.ok()) return result.status();
        PrintSummary(absl::StrFormat(
            "%s | %d vectors of %d | in a batch of %d | %.1f ms",
            TokenCount(result->started.tokens()), result->values.size() / width, width,
            result->finished.batch_rows(), static_cast<double>(result->duration.count()) / 1e6));
        return absl::OkStatus();
      },
      [&](Output& output, const absl::Status& status, bool interrupted) {
        ReportStreamError(output, flags.call.json, status, interrupted);
      });
}

}  // namespace

Command AddEncode(CLI::App& app, const CommonFlags& common) {
  static const std::map<std::string, v1::Pooling> kPooling = {{"none", v1::POOLING_UNSPECIFIED},
                                                              {"mean", v1::POOLING_MEAN},
                                                              {"first", v1::POOLING_FIRST},
                                                              {"last", v1::POOLING_LAST}};
  auto owned = std::make_shared<EncodeFlags>();
  EncodeFlags& flags = *owned;
  AddText(app, "Text to encode", flags.text);
  AddCall(app, flags.call);
  app.add_option("--pooling", flags.pooling,
                 "One vector instead of one per token: the mean, or the first or last token's")
      ->transform(CLI::CheckedTransformer(kPooling))
      ->type_name("none|mean|first|last");
  app.add_flag("--normalize", flags.normalize, "Make every vector's Euclidean length 1");
  return [&common, owned] { return RunEncode(common, *owned); };
}

}  // namespace aft::client

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/utf8.h"
#include "client/aftctl/stream.h"

namespace aft::client {
namespace {

struct DetokenizeFlags : StreamFlags {
  std::vector<uint32_t> ids;
};

// Quotes a piece of text. Escapes what a line cannot contain, and each byte of a piece that is no
// whole character.
std::string Quoted(absl::string_view piece) {
  const bool whole = ToValidUtf8(piece) == piece;
  return absl::StrCat("\"", whole ? absl::Utf8SafeCHexEscape(piece) : absl::CHexEscape(piece),
                      "\"");
}

// One line for each id, with its piece of the text that the ids stand for.
std::string Lines(const v1::TokenizeResponse& tokens, const v1::DetokenizeResponse& pieces) {
  const absl::string_view text = pieces.raw();
  std::string lines;
  size_t begin = 0;
  // Clamped, so that wrong offsets of a server stay within the text.
  for (int i = 0; i < std::min(tokens.token_ids_size(), pieces.byte_ends_size()); ++i) {
    const size_t end = std::clamp<size_t>(pieces.byte_ends(i), begin, text.size());
    absl::StrAppend(&lines, tokens.token_ids(i), "\t", Quoted(text.substr(begin, end - begin)),
                    "\n");
    begin = end;
  }
  return lines;
}

int RunTokenize(const CommonFlags& common, const StreamFlags& flags) {
  absl::StatusOr<std::string> text = ReadText(flags);
  if (!text.ok()) return UsageError(text.status());
  v1::TokenizeRequest request;
  SetModel(flags, request);
  SetText(*text, request);
  return RunCall(common, flags, [&](Client& client, const CallOptions& options, Output& output) {
    const auto tokens = client.Tokenize(request, options);
    if (!tokens.ok()) return tokens.status();
    if (flags.json) {
      output.Write(JsonLine(*tokens));
      return absl::OkStatus();
    }
    // The tokenizer may have changed the text, so the pieces come from the ids.
    v1::DetokenizeRequest back;
    SetModel(flags, back);
    *back.mutable_token_ids() = tokens->token_ids();
    const auto pieces = client.Detokenize(back, options);
    if (pieces.ok()) output.Write(Lines(*tokens, *pieces));
    return pieces.status();
  });
}

int RunDetokenize(const CommonFlags& common, const DetokenizeFlags& flags) {
  v1::DetokenizeRequest request;
  SetModel(flags, request);
  request.mutable_token_ids()->Add(flags.ids.begin(), flags.ids.end());
  return RunCall(common, flags, [&](Client& client, const CallOptions& options, Output& output) {
    const auto text = client.Detokenize(request, options);
    if (text.ok() && flags.json) {
      output.Write(JsonLine(*text));
    } else if (text.ok()) {
      output.Write(output.is_terminal() ? ForTerminal(text->text()) : text->raw());
      output.EndLine();
    }
    return text.status();
  });
}

}  // namespace

Command AddTokenize(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<StreamFlags>();
  AddText(app, "Text to split into tokens", *flags);
  AddCall(app, *flags);
  app.add_flag("--json", flags->json, "Print the response as one JSON object");
  return [&common, flags] { return RunTokenize(common, *flags); };
}

Command AddDetokenize(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<DetokenizeFlags>();
  app.add_option("ids", flags->ids, "Token ids; their text is printed byte for byte");
  AddCall(app, *flags);
  app.add_flag("--json", flags->json, "Print the response as one JSON object");
  return [&common, flags] { return RunDetokenize(common, *flags); };
}

}  // namespace aft::client

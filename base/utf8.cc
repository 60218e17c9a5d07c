#include "base/utf8.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace aft {
namespace {
constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";
}  // namespace

void Utf8Stream::Append(absl::string_view bytes, std::string& out) {
  for (size_t i = 0; i < bytes.size();) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    if (missing_ > 0) {
      if (!Takes(bytes[i])) {
        // The bytes so far are a maximal subpart; this byte starts anew.
        Flush(out);
        continue;
      }
      pending_[size_++] = bytes[i++];
      lower_ = 0x80;
      upper_ = 0xBF;
      if (--missing_ == 0) {
        out.append(pending_.data(), size_);
        size_ = 0;
      }
      continue;
    }
    ++i;
    if (byte < 0x80) {
      out.push_back(static_cast<char>(byte));
      continue;
    }
    if (byte < 0xC2 || byte > 0xF4) {
      out.append(kReplacement.data(), kReplacement.size());
      continue;
    }
    missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    lower_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;  // no overlong forms
    upper_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;  // no surrogates, none past 10FFFF
    pending_[0] = static_cast<char>(byte);
    size_ = 1;
  }
}

void Utf8Stream::Flush(std::string& out) {
  if (size_ > 0) out.append(kReplacement.data(), kReplacement.size());
  size_ = 0;
  missing_ = 0;
}

std::string ToValidUtf8(absl::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  Utf8Stream stream;
  stream.Append(bytes, out);
  stream.Flush(out);
  return out;
}

std::string Shown(absl::string_view bytes, size_t most) {
  return absl::StrCat(absl::Utf8SafeCHexEscape(ToValidUtf8(bytes.substr(0, most))),
                      bytes.size() > most ? "..." : "");
}

}  // namespace aft

#include "server/http/html_page.h"

#include <openssl/sha.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace aft::server {
namespace {

// The source of Content-Security-Policy for the page's element `tag`, which is there once.
std::string Source(absl::string_view html, absl::string_view tag) {
  const std::string open = absl::StrCat("<", tag, ">");
  const size_t start = html.find(open) + open.size();
  const absl::string_view text =
      html.substr(start, html.find(absl::StrCat("</", tag, ">")) - start);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  const absl::string_view bytes(reinterpret_cast<const char*>(digest), sizeof(digest));
  return absl::StrCat("'sha256-", absl::Base64Escape(bytes), "'");
}

}  // namespace

HttpPage HtmlPage(absl::string_view html) {
  const std::string policy =
      absl::StrCat("default-src 'none'; connect-src 'self'; img-src data:; script-src ",
                   Source(html, "script"), "; style-src ", Source(html, "style"),
                   "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  return {.content_type = "text/html; charset=utf-8",
          .body = std::string(html),
          .headers = {{"Content-Security-Policy", policy}}};
}

}  // namespace aft::server

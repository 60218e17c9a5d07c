#pragma once

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace aft::server {

// A page of HTML in one file. `html` has one <style> and one <script>. The page's
// Content-Security-Policy allows these two by their hashes, requests to the page's own origin, and
// nothing else.
HttpPage HtmlPage(absl::string_view html);

}  // namespace aft::server

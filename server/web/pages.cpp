#include "server/web/pages.hpp"

namespace gpuwire::server::web {
namespace {

Html head(const std::string& title, bool live) {
  Html html = Html::markup(
                  "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                  "<meta name=\"color-scheme\" content=\"light dark\">\n<title>") +
              title +
              Html::markup(
                  " - gpuwire</title>\n<link rel=\"stylesheet\" href=\"style.css\">\n"
                  "<link rel=\"icon\" href=\"icon.svg\" type=\"image/svg+xml\">\n");
  if (live) html += Html::markup("<script src=\"live.js\" defer></script>\n");
  return html + Html::markup("</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the content</a>\n");
}

Html csrf_field(const std::string& csrf) {
  return Html::markup("<input type=\"hidden\" name=\"csrf\" value=\"") + csrf + Html::markup("\">\n");
}

Html navigation(View current) {
  Html html = Html::markup("<nav aria-label=\"Pages\"><ul>\n");
  for (const ViewName& one : kViews) {
    html += Html::markup("<li><a href=\"") + one.path;
    html += one.view == current ? Html::markup("\" aria-current=\"page\">") : Html::markup("\">");
    html += one.title + Html::markup("</a></li>\n");
  }
  return html + Html::markup("</ul></nav>\n");
}

Html visitor_line(const Visitor& visitor, const std::string& csrf) {
  const Html who =
      visitor.administrator() ? Html("administrator") : Html("tenant ") + owner_name(visitor.tenant, visitor.user);
  return Html::markup("<form class=\"who\" method=\"post\" action=\"sign-out\">") + csrf_field(csrf) +
         Html::markup("<span>Signed in as ") + who +
         Html::markup("</span> <button type=\"submit\">Sign out</button></form>\n");
}

Html end_of_page() { return Html::markup("</main>\n</body>\n</html>\n"); }

Html bare_page(const std::string& title, const Html& content) {
  return head(title, false) + Html::markup("<header><p class=\"name\">gpuwire</p></header>\n<main id=\"main\"><h1>") +
         title + Html::markup("</h1>\n") + content + end_of_page();
}

struct ActionWords {
  const char *path, *verb, *effect;
};
// By Action.
constexpr ActionWords kActions[] = {
    {"end", "End", "Its program loses its GPU at once"},
    {"suspend", "Suspend",
     "Its device memory goes to the server's own memory, if it is idle, and returns with its program's next call."},
    {"resume", "Resume", "Its device memory returns to its GPU as soon as there is room."}};

}  // namespace

std::string view_page(View view, const Visitor& visitor, const std::vector<Part>& parts, const std::string& csrf) {
  const ViewName& name = name_of(view);
  Html html = head(name.title, true) + Html::markup("<header><p class=\"name\">gpuwire</p>\n") + navigation(view) +
              visitor_line(visitor, csrf) + Html::markup("</header>\n<main id=\"main\" data-view=\"") + name.path +
              Html::markup("\"><h1>") + name.title +
              Html::markup(
                  "</h1>\n<p id=\"live\"><noscript>These figures are of the moment when the page was loaded; "
                  "load it again for newer ones.</noscript></p>\n");
  for (const Part& part : parts)
    html += Html::markup("<section aria-labelledby=\"title-") + part.id + Html::markup("\"><h2 id=\"title-") + part.id +
            Html::markup("\">") + part.title + Html::markup("</h2>\n<div id=\"") + part.id + Html::markup("\">\n") +
            part.html + Html::markup("</div></section>\n");
  return (html + end_of_page()).str();
}

std::string sign_in_page(const std::string& csrf, const std::string& holder, const std::string& wrong) {
  Html content;
  if (!wrong.empty())
    content += Html::markup("<p class=\"bad\" role=\"alert\" id=\"wrong\">") + wrong + Html::markup("</p>\n");
  if (!holder.empty())
    content += Html::markup("<form method=\"post\" action=\"sign-in\">\n") + csrf_field(csrf) +
               Html::markup(
                   "<input type=\"hidden\" name=\"by\" value=\"certificate\">\n"
                   "<button type=\"submit\">Sign in as <bdi>") +
               holder + Html::markup("</bdi> with the certificate</button>\n</form>\n");
  content += Html::markup("<form method=\"post\" action=\"sign-in\">\n") + csrf_field(csrf) +
             Html::markup(
                 "<label for=\"secret\">Token or code</label>\n"
                 "<input type=\"password\" id=\"secret\" name=\"secret\" autocomplete=\"off\" required "
                 "maxlength=\"2000\" aria-describedby=\"help\">\n"
                 "<p id=\"help\">A tenant signs in with its token, the line of its token file that begins with "
                 "<code>gpuwire_</code>. An administrator signs in "
                 "with a code that <code>gpuwire admin web-code</code> prints on the server.</p>\n"
                 "<button type=\"submit\">Sign in</button>\n</form>\n"
                 // A link on another site brings no cookie along.
                 "<p>Signed in already? <a href=\"overview\">To the page</a></p>\n");
  return bare_page("Sign in", content).str();
}

std::string confirm_page(Action action, const Visitor& visitor, uint64_t session, const std::string& csrf) {
  const ActionWords& words = kActions[size_t(action)];
  const std::string title = std::string(words.verb) + " session " + std::to_string(session) + "?";
  Html content = Html::markup("<p>") + words.effect;
  if (action == Action::end)
    content += visitor.administrator() ? ", and is told that the administrator has ended it." : ".";
  content += Html::markup("</p>\n<form method=\"post\" action=\"") + words.path + Html::markup("\">\n") +
             csrf_field(csrf) + Html::markup("<input type=\"hidden\" name=\"session\" value=\"") +
             Html::number(session) + Html::markup("\">\n<button type=\"submit\"") +
             (action == Action::end ? Html::markup(" class=\"danger\">") : Html::markup(">")) + words.verb +
             " session " + Html::number(session) +
             Html::markup("</button> <a class=\"button\" href=\"overview\">Keep it</a>\n</form>\n");
  return bare_page(title, content).str();
}

std::string message_page(const std::string& title, const std::string& text) {
  return bare_page(title,
                   Html::markup("<p>") + text + Html::markup("</p>\n<p><a href=\"overview\">To the page</a></p>\n"))
      .str();
}

}  // namespace gpuwire::server::web

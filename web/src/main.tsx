// Where the page begins.

import { render } from "preact";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/ask.css";
import "./styles/library.css";
import { App } from "./view/app";

const root = document.getElementById("page");
if (root) render(<App />, root);

from ringtree.explain.report import Explanation as Explanation, explain as explain
